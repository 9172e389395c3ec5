# cmake -D OUT=FILE -D "ROOTS=FOLDER,..." -D "FILES=PATH,..." -P Embed.cmake: writes the C++ source
# with the texts of those files, for starling/kernels/cuda/program.h. Each file comes from the first
# folder that has it.
string(REPLACE "," ";" ROOTS "${ROOTS}")
string(REPLACE "," ";" FILES "${FILES}")
set(text "#include \"starling/kernels/cuda/program.h\"\n\nnamespace starling::kernels::cuda {\n\n")
string(APPEND text "std::span<const Text> embedded_texts() {\n  static constexpr Text kTexts[] = {\n")
foreach(file IN LISTS FILES)
  find_file(found "${file}" PATHS ${ROOTS} NO_CACHE NO_DEFAULT_PATH REQUIRED)
  file(READ "${found}" content)
  unset(found)
  string(APPEND text "{\"${file}\", R\"starling(${content})starling\"},\n")
endforeach()
string(APPEND text "  };\n  return kTexts;\n}\n\n}  // namespace starling::kernels::cuda\n")
file(WRITE "${OUT}" "${text}")
