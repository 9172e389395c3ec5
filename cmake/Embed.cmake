# cmake -D OUT=FILE -D ROOT=FOLDER -D "FILES=PATH,..." -P Embed.cmake: writes the C++ source that holds the texts of those
# files of the folder, for starling/kernels/cuda/program.h.
string(REPLACE "," ";" FILES "${FILES}")
set(text "#include \"starling/kernels/cuda/program.h\"\n\nnamespace starling::kernels::cuda {\n\n")
string(APPEND text "std::span<const Text> embedded_texts() {\n  static constexpr Text kTexts[] = {\n")
foreach(file IN LISTS FILES)
  file(READ "${ROOT}/${file}" content)
  string(APPEND text "{\"${file}\", R\"starling(${content})starling\"},\n")
endforeach()
string(APPEND text "  };\n  return kTexts;\n}\n\n}  // namespace starling::kernels::cuda\n")
file(WRITE "${OUT}" "${text}")
