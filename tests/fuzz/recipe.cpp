// The reader of recipes, with one key of each kind.
#include "starling/core/config.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

struct Values {
  bool flag = false;
  int count = 3;
  std::int64_t big = 5;
  double rate = 0.5;
  std::array<double, 2> pair = {0.9, 0.99};
  std::string text = "text";
  std::string choice = "one";
};

Config declared(Values& v) {
  Config c;
  c.section("alpha", "the first");
  c.key("flag", &v.flag, "a switch");
  c.key("count", &v.count, between(1, 10), "a number of things");
  c.key("big", &v.big, at_least(0), "a larger number");
  c.section("beta", "the second");
  c.key("rate", &v.rate, above(0), "a rate");
  c.key("pair", &v.pair, from_below(0, 1), "two of them");
  c.key("text", &v.text, "any text");
  c.key("choice", &v.choice, Choices{"one", "two", "three"}, "one of these");
  return c;
}

}  // namespace

void read(std::string_view bytes) {
  Values values, back;
  Config config = declared(values), again = declared(back);
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
