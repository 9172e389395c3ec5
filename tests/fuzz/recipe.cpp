// The reader of recipes, with one key of each kind.
#include "starling/core/config.h"
#include "tests/core/every_kind.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  EveryKind values, back;
  Config config = declare(values), again = declare(back);
  // The first line may be an override: "beta.text=value".
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  if (const std::size_t is = line.find('='); is != std::string_view::npos)
    accepted([&] { config.set(std::string(line.substr(0, is)), std::string(line.substr(is + 1))); });
  accepted([&] { config.read_text(bytes, "a.toml"); });
  const std::string printed = config.print();
  check(accepted([&] { again.read_text(printed, "printed"); }), "is not read back: " + printed);
  check(again.print() == printed, "is read back as another: " + printed);
}

}  // namespace starling::fuzz
