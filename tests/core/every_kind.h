// A recipe with one key of each kind.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "starling/core/config.h"

namespace starling {

struct EveryKind {
  bool flag = false;
  int count = 3;
  std::int64_t big = 1;
  double rate = 0.5;
  std::array<double, 2> pair{0.25, 0.75};
  std::string text = "plain";
  std::string choice = "one";
};

inline Config declare(EveryKind& v) {
  Config c;
  c.section("alpha", "first");
  c.key("flag", &v.flag, "a switch");
  c.key("count", &v.count, between(1, 10), "a number of things");
  c.key("big", &v.big, at_least(0), "a large number");
  c.section("beta", "second");
  c.key("rate", &v.rate, above(0), "a rate");
  c.key("pair", &v.pair, from_below(0, 1), "two decays");
  c.key("text", &v.text, "a name");
  c.key("choice", &v.choice, Choices{"one", "two", "three"}, "one of them");
  return c;
}

}  // namespace starling
