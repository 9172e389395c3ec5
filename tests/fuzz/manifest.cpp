#include "starling/checkpoint/manifest.h"

#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  const std::string text(bytes);
  accepted([&] { check(to_json(parse_manifest(text, "m")) == text, "is read as another"); });
}
