/* SPDX-License-Identifier: Apache-2.0 */
/* Programs: a kernel source that became a module on one GPU. It was compiled, or comes from the disk, or is the generic
 * variant.
 *
 * A process loads each program once for each GPU, however many ranks it has as threads: living programs are in a list
 * and shared. A thread that asks for a program which another thread is making waits only for that one. Making takes
 * long, and the driver loads no module while kernels of its context run. Those kernels may be waiting for a rank that
 * asks here for another program. A thread that asks for the same program on another GPU waits until it has been
 * compiled, and finds it on the disk. */
#include "base/interrupt.h"
#include "cuda/nvrtc.h"
#include "cuda/parts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef enum program_state { PROGRAM_COMPILING, PROGRAM_LOADING, PROGRAM_MADE, PROGRAM_FAILED } program_state;

struct cuda_program {
    cuda_program *next; /* guarded by lock, as are state and references */
    cu_context context;
    cuda_key key;
    /* until the program is made or has failed, only its maker uses the members after `references`; then no thread
       changes them */
    program_state state;
    int32_t references;
    cuda_device *device; /* a reference of its own, so that the context outlives the module; NULL: not opened */
    cu_module module;    /* NULL: not loaded */
    bool generic;
    error_kept made; /* failed: why, for the threads that waited */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* signals a change of state; made by prepare_waits */
static cuda_program *programs; /* guarded by lock: all programs but those that failed */

/* ---- the code ---------------------------------------------------------------------------------------------------- */

/* The code to load into a module. data is owned here unless generic. */
typedef struct image {
    const void *data;
    void *owned;
    bool generic;
} image;

/* Finds the newest architecture that the compiler knows and whose code the device runs: same major, minor not above. */
static expar_status choose_arch(const cuda_device *device, const nvrtc_functions *nvrtc, int32_t *arch)
{
    int count = 0, known[256];
    int32_t own = device->major * 10 + device->minor, best = 0;
    if (nvrtc->GetNumSupportedArchs(&count) != 0 || count > (int)ARRAY_LENGTH(known) ||
        nvrtc->GetSupportedArchs(known) != 0)
        return error_set(EXPAR_ERR_CUDA, "nvrtcGetSupportedArchs failed");
    for (int i = 0; i < count; i++)
        if (known[i] / 10 == device->major && known[i] <= own && known[i] > best) best = known[i];
    if (!best)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "NVRTC %d.%d (%s) does not know GPUs of compute capability %d.%d, as GPU %d (%s) is: install "
                         "a newer one",
                         nvrtc->version / 1000, nvrtc->version % 1000 / 10, nvrtc->path, device->major, device->minor,
                         device->index, device->name);
    *arch = best;
    return EXPAR_OK;
}

/* Number of failed programs that are remembered. */
#define FAILURES 64

/* The same source with the same options fails at every call, but its messages are logged only once. */
static void log_messages(const cuda_key *key, const cuda_source *source, const char *messages)
{
    static cuda_key failed[FAILURES]; /* guarded by lock, as is the number of all failures */
    static size_t noted;
    bool known = false;
    if (!messages) return;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < noted && i < FAILURES; i++)
        known |= memcmp(&failed[i], key, sizeof *key) == 0;
    if (!known) failed[noted++ % FAILURES] = *key;
    pthread_mutex_unlock(&lock);
    if (!known) LOG(LOG_ERROR, "compiling %s:\n%s", source->name, messages);
}

static expar_status compile(const cuda_source *source, const cuda_options *options, const cuda_key *key, image *out)
{
    void *cubin = NULL;
    size_t bytes = 0;
    char *messages = NULL;
    int64_t start_ns = clock_ns();
    expar_status status = cuda_source_compile(source, options, &cubin, &bytes, &messages);
    if (status != EXPAR_OK) {
        log_messages(key, source, messages);
    } else {
        LOG(LOG_INFO, "compiled %s in %lld ms", source->name, (long long)(clock_ns() - start_ns) / 1000000);
        cuda_cache_store(key, cubin, bytes);
        *out = (image){.data = cubin, .owned = cubin};
    }
    free(messages);
    return status;
}

/* Takes the generic variant on a machine without NVRTC. */
static expar_status take_generic(const cuda_device *device, const cuda_source *source, expar_status why, image *out)
{
    if (source->cubin && device->major == CUDA_READY_ARCH / 10) {
        *out = (image){.data = source->cubin, .generic = true};
        return EXPAR_OK;
    }
    return error_prefix(why, "no kernels for GPU %d (%s, compute capability %d.%d): %s", device->index, device->name,
                        device->major, device->minor,
                        source->cubin ? "this library carries ready code for 9.x only"
                                      : "this library was built without nvcc and carries no ready code");
}

static expar_status load_image(const cuda_source *source, const cuda_options *options, const cuda_key *key, image *out)
{
    void *data;
    size_t bytes;
    if (!cuda_cache_load(key, &data, &bytes)) return compile(source, options, key, out);
    *out = (image){.data = data, .owned = data};
    return EXPAR_OK;
}

/* ---- making one -------------------------------------------------------------------------------------------------- */

/* Sets the error for code that was compiled here, and that the driver did not load. */
static expar_status blame_compiler(expar_status status)
{
    const nvrtc_functions *nvrtc;
    char text[ERROR_TEXT_BYTES];
    if (nvrtc_open(&nvrtc) != EXPAR_OK || !nvrtc_is_newer(nvrtc)) return status;
    nvrtc_describe_newer(nvrtc, text, sizeof text);
    return error_prefix(status, "%s", text);
}

static expar_status load_module(const cuda_device *device, const cuda_source *source, const image *code, cu_module *out)
{
    cu_module module;
    expar_status status = cuda_enter(device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(ModuleLoadData, &module, code->data);
    if (status == EXPAR_OK) *out = module;
    if (status != EXPAR_OK) error_prefix(status, "%s", source->name);
    if (status != EXPAR_OK && !code->generic) blame_compiler(status);
    cuda_leave();
    return status;
}

static void set_state(cuda_program *self, program_state state)
{
    pthread_mutex_lock(&lock);
    self->state = state;
    pthread_mutex_unlock(&lock);
    pthread_cond_broadcast(&changed);
}

/* Without the lock: a load in another thread may delay every call of the driver. compiler: whether there is one; if
   not, this thread's last error says why. */
static expar_status program_make(cuda_program *self, const cuda_device *device, const cuda_source *source,
                                 const cuda_options *options, expar_status compiler)
{
    image code = {0};
    expar_status status = compiler == EXPAR_OK ? load_image(source, options, &self->key, &code)
                                               : take_generic(device, source, compiler, &code);
    if (status == EXPAR_OK) set_state(self, PROGRAM_LOADING);
    if (status == EXPAR_OK) status = cuda_device_open(device->index, &self->device);
    if (status == EXPAR_OK) status = load_module(self->device, source, &code, &self->module);
    self->generic = code.generic;
    free(code.owned);
    return status;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static cuda_program *find_known(const cuda_device *device, const cuda_key *key)
{
    for (cuda_program *one = programs; one; one = one->next)
        if (one->context == device->context && memcmp(&one->key, key, sizeof *key) == 0) return one;
    return NULL;
}

/* Returns whether it is being compiled for any GPU. */
static bool is_being_compiled(const cuda_key *key)
{
    for (const cuda_program *one = programs; one; one = one->next)
        if (one->state == PROGRAM_COMPILING && memcmp(&one->key, key, sizeof *key) == 0) return true;
    return false;
}

static expar_status program_add(const cuda_device *device, const cuda_key *key, cuda_program **out)
{
    cuda_program *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for a program");
    *self = (cuda_program){
        .next = programs, .context = device->context, .key = *key, .state = PROGRAM_COMPILING, .references = 1};
    programs = *out = self;
    return EXPAR_OK;
}

static void take_off(const cuda_program *self)
{
    cuda_program **place = &programs;
    while (*place != self)
        place = &(*place)->next;
    *place = self->next;
}

/* With the lock held, which is released while the program is made. A failed program leaves the list at once: the next
   thread that asks tries again. */
static void make_known(cuda_program *self, const cuda_device *device, const cuda_source *source,
                       const cuda_options *options, expar_status compiler)
{
    pthread_mutex_unlock(&lock);
    error_keep(&self->made, program_make(self, device, source, options, compiler));
    pthread_mutex_lock(&lock);
    self->state = self->made.status == EXPAR_OK ? PROGRAM_MADE : PROGRAM_FAILED;
    if (self->state == PROGRAM_FAILED) take_off(self);
    pthread_cond_broadcast(&changed);
}

static void prepare_waits(void)
{
    interrupt_cond_init(&changed);
}

/* Waits until a state may have changed. The lock is held, and released meanwhile. *asked_ns: of interrupt_look. */
static expar_status await_state(int64_t *asked_ns)
{
    interrupt_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    expar_status status = interrupt_look(asked_ns, "kernels that another thread makes");
    pthread_mutex_lock(&lock);
    return status;
}

static bool is_being_made(const cuda_program *self)
{
    return self->state == PROGRAM_COMPILING || self->state == PROGRAM_LOADING;
}

/* With the lock held. Returns a reference to the program; it may have failed or, also on failure, still be in the
   making. */
static expar_status find_or_make(const cuda_device *device, const cuda_source *source, const cuda_options *options,
                                 const cuda_key *key, expar_status compiler, cuda_program **out)
{
    cuda_program *self;
    int64_t asked_ns = 0;
    expar_status status = EXPAR_OK;
    while (!(self = find_known(device, key)) && is_being_compiled(key) && status == EXPAR_OK)
        status = await_state(&asked_ns);
    if (self) {
        self->references++;
        while (is_being_made(self) && status == EXPAR_OK)
            status = await_state(&asked_ns);
    } else if (status == EXPAR_OK) {
        status = program_add(device, key, &self);
        if (status == EXPAR_OK) make_known(self, device, source, options, compiler);
    }
    *out = self;
    return status;
}

/* For a program that failed, returns its status and drops the reference. `waited`: the result of the wait for it. */
static expar_status hand_out(cuda_program *self, expar_status waited, cuda_program **out)
{
    error_kept kept;
    error_keep(&kept, waited);
    if (waited != EXPAR_OK) {
        cuda_program_release(self);
        return error_restore(&kept);
    }
    if (self->state == PROGRAM_MADE) {
        *out = self;
        return EXPAR_OK;
    }
    expar_status status = error_restore(&self->made);
    cuda_program_release(self);
    return status;
}

/* ---- for the layers above ---------------------------------------------------------------------------------------- */

/* Kernels use instructions that older GPUs do not have. A compiler's messages about those would not help the user. */
static expar_status check_capability(const cuda_device *device)
{
    if (device->major >= CUDA_LEAST_MAJOR) return EXPAR_OK;
    return error_set(EXPAR_ERR_UNSUPPORTED, "GPU %d (%s) has compute capability %d.%d; expected %d.0 or higher",
                     device->index, device->name, device->major, device->minor, CUDA_LEAST_MAJOR);
}

expar_status cuda_program_make(const cuda_device *device, const cuda_source *source, const cuda_macro *macros,
                               size_t num_macros, cuda_program **out)
{
    expar_status able = check_capability(device);
    if (able != EXPAR_OK) return able;
    const nvrtc_functions *nvrtc = NULL;
    int32_t arch = 0;
    error_kept kept;
    cuda_options options;
    cuda_key key;
    expar_status compiler = nvrtc_open(&nvrtc);
    if (compiler == EXPAR_OK) compiler = choose_arch(device, nvrtc, &arch);
    error_keep(&kept, compiler);
    expar_status status = cuda_options_make(arch, macros, compiler == EXPAR_OK ? num_macros : 0, &options);
    if (status != EXPAR_OK) return status;
    status = cuda_key_make(source, &options, nvrtc ? nvrtc->version : 0, cuda_driver_version(), &key);
    if (status == EXPAR_OK) {
        static pthread_once_t prepared = PTHREAD_ONCE_INIT;
        cuda_program *found = NULL;
        pthread_once(&prepared, prepare_waits);
        error_restore(&kept);
        pthread_mutex_lock(&lock);
        status = find_or_make(device, source, &options, &key, compiler, &found);
        pthread_mutex_unlock(&lock);
        status = hand_out(found, status, out);
    }
    cuda_options_free(&options);
    return status;
}

expar_status cuda_program_load(const cuda_device *device, const char *kernel, const cuda_macro *macros,
                               size_t num_macros, cuda_program **out)
{
    const cuda_source *source = cuda_source_find(kernel);
    if (!source) return error_set(EXPAR_ERR_ARGUMENT, "there is no kernel source %s", kernel);
    return cuda_program_make(device, source, macros, num_macros, out);
}

void cuda_program_release(cuda_program *self)
{
    if (!self) return;
    pthread_mutex_lock(&lock);
    bool last = --self->references == 0;
    if (last && self->state == PROGRAM_MADE) take_off(self);
    pthread_mutex_unlock(&lock);
    if (!last) return;
    if (self->module && cuda_enter(self->device) == EXPAR_OK) {
        if (CUDA_CALL(ModuleUnload, self->module) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
        cuda_leave();
    }
    cuda_device_close(self->device);
    free(self);
}

bool cuda_program_is_generic(const cuda_program *self)
{
    return self->generic;
}

expar_status cuda_program_kernel(const cuda_program *self, const char *name, int32_t shared_bytes, cu_function *out)
{
    cu_function function;
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(ModuleGetFunction, &function, self->module, name);
    if (status == EXPAR_OK && shared_bytes > 0)
        status = CUDA_CALL(FuncSetAttribute, function, CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, shared_bytes);
    cuda_leave();
    if (status != EXPAR_OK) return error_prefix(status, "kernel %s", name);
    *out = function;
    return EXPAR_OK;
}
