// SPDX-License-Identifier: Apache-2.0
// The headers from C++17: every initialiser compiles without a warning, and calls link.
#include <expar/expar.h>

int main()
{
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    expar_ep_dispatch_args dispatch = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_combine_args combine = EXPAR_EP_COMBINE_ARGS_INIT;
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    dispatch.x = EXPAR_TENSOR_NONE;
    bool sized = options.struct_size == sizeof options && config.struct_size == sizeof config &&
                 layout.struct_size == sizeof layout && dispatch.struct_size == sizeof dispatch &&
                 result.struct_size == sizeof result && combine.struct_size == sizeof combine &&
                 info.struct_size == sizeof info;
    bool empty = options.id == nullptr && config.max_tokens == 0 && combine.out_y.data == nullptr;
    return sized && empty && expar_group_rank(nullptr) == -1 ? 0 : 1;
}
