#include "starling/core/tree.h"
#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  accepted([&] { parse_toml(bytes, "a.toml"); });
}
