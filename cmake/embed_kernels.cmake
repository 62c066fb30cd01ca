# SPDX-License-Identifier: Apache-2.0
# Writes OUT, a C file with the table TABLE. It has the text of each of FILES, named relative to one of ROOTS, and the
# cubin of those that have one, CUBINS/NAME.sm_90.cubin. The assembler takes in the files' bytes: as numbers in C they
# would be 25 MB of text, and 20 seconds of each build.
set(arrays)
set(rows)
set(number 0)
foreach(file ${FILES})
  foreach(root ${ROOTS})
    string(FIND ${file} ${root}/ at)
    if(at EQUAL 0)
      file(RELATIVE_PATH name ${root} ${file})
      break()
    endif()
  endforeach()
  string(APPEND arrays "EMBED(text_${number}, \"${file}\")\n")
  get_filename_component(base ${file} NAME)
  set(cubin ${CUBINS}/${base}.sm_90.cubin)
  if(EXISTS ${cubin})
    file(SIZE ${cubin} bytes)
    string(APPEND arrays "EMBED(cubin_${number}, \"${cubin}\")\n")
    string(APPEND rows "    {\"${name}\", (const char *)text_${number}, cubin_${number}, ${bytes}, ${TABLE}, COUNT},\n")
  else()
    string(APPEND rows "    {\"${name}\", (const char *)text_${number}, NULL, 0, ${TABLE}, COUNT},\n")
  endif()
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "/* Made by cmake/embed_kernels.cmake. */\n#include \"cuda/cuda.h\"\n\n"
  "/* The bytes of the file, and a zero after them. The name is local to this object. */\n"
  "#define EMBED(name, file) \\\n"
  "    extern const unsigned char name[] __attribute__((visibility(\"hidden\"))); \\\n"
  "    __asm__(\".pushsection .rodata.\" #name \",\\\"a\\\"\\n.balign 64\\n\" #name \":\\n\" \\\n"
  "            \".incbin \\\"\" file \"\\\"\\n.byte 0\\n.popsection\\n\");\n\n"
  "${arrays}\n"
  "#define COUNT ${number}\nextern const cuda_source ${TABLE}[];\nextern const size_t ${COUNT};\n\n"
  "const cuda_source ${TABLE}[COUNT] = {\n${rows}};\nconst size_t ${COUNT} = COUNT;\n")
