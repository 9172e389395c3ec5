#include "starling/core/config.h"

#include <gmock/gmock.h>

#include "tests/changed_texts.h"
#include "tests/core/every_kind.h"
#include "tests/refusal.h"

namespace starling {
namespace {

std::string error_of(const std::string& text) {
  EveryKind v;
  Config c = declare(v);
  return refusal<UsageError>([&] { c.read_text(text, "a.toml"); });
}

std::string override_error(const std::string& path, const std::string& value) {
  EveryKind v;
  Config c = declare(v);
  return refusal<UsageError>([&] { c.set(path, value); });
}

TEST(Config, ReadsEveryTypeAndLeavesTheRest) {
  EveryKind v;
  Config c = declare(v);
  c.read_text("[alpha]\nflag = true\ncount = 7\n[beta]\nrate = 2\npair = [0, 0.5]\nchoice = 'two'\n",
              "a.toml");
  EXPECT_TRUE(v.flag);
  EXPECT_EQ(v.count, 7);
  EXPECT_EQ(v.rate, 2.0);  // an integer is valid for a number
  EXPECT_EQ(v.pair, (std::array{0.0, 0.5}));
  EXPECT_EQ(v.choice, "two");
  EXPECT_EQ(v.big, 1);
  EXPECT_EQ(v.text, "plain");
  EXPECT_EQ(c.origin("alpha.count"), "a.toml:3");
  EXPECT_EQ(c.origin("beta.text"), "default");
}

TEST(Config, SaysWhereWhatAndWhatIsAllowed) {
  EXPECT_EQ(error_of("[alpha]\ncount = 1\n\n[beta]\nrat = 1\n"),
            "a.toml:5: unknown key \"rat\" in section beta, did you mean rate?; there are: rate, pair, text, "
            "choice");
  EXPECT_EQ(
      error_of("[alpha]\nsomething_else_entirely = 1"),
      "a.toml:2: unknown key \"something_else_entirely\" in section alpha; there are: flag, count, big");
  EXPECT_EQ(error_of("[alpha]\nchoice = 'two'"),
            "a.toml:2: unknown key \"choice\" in section alpha, did you mean beta.choice?; there are: flag, "
            "count, big");
  EXPECT_EQ(error_of("\n[alhpa]\n"),
            "a.toml:2: unknown section \"alhpa\", did you mean alpha?; there are: alpha, beta");
  EXPECT_EQ(error_of("alpha = 1"), "a.toml:1: alpha is a whole number, but must be a section: [alpha]");
  EXPECT_EQ(error_of("[alpha]\ncount = 11"),
            "a.toml:2: alpha.count = 11: out of range, allowed is a whole number at least 1 and at most 10");
  EXPECT_EQ(error_of("[alpha]\ncount = 2.0"),
            "a.toml:2: alpha.count = 2.0: wrong type, allowed is a whole number at least 1 and at most 10");
  EXPECT_EQ(error_of("[alpha]\nflag = 'yes'"),
            "a.toml:2: alpha.flag = \"yes\": wrong type, allowed is true or false");
  EXPECT_EQ(error_of("[beta]\nrate = 0"),
            "a.toml:2: beta.rate = 0: out of range, allowed is a number above 0");
  EXPECT_EQ(error_of("[beta]\nrate = nan"),
            "a.toml:2: beta.rate = nan: out of range, allowed is a number above 0");
  EXPECT_EQ(error_of("[beta]\nrate = inf"),
            "a.toml:2: beta.rate = inf: out of range, allowed is a number above 0");
  EXPECT_EQ(
      error_of("[beta]\npair = [0.5, 1.0]"),
      "a.toml:2: beta.pair = [0.5, 1]: out of range, allowed is two numbers, each at least 0 and below 1");
  EXPECT_EQ(error_of("[beta]\npair = [0.5]"),
            "a.toml:2: beta.pair = [0.5]: wrong type, allowed is two numbers, each at least 0 and below 1");
  EXPECT_EQ(
      error_of("[beta]\npair = ['a', 'b']"),
      "a.toml:2: beta.pair = an array: wrong type, allowed is two numbers, each at least 0 and below 1");
  EXPECT_EQ(
      error_of("[beta]\nchoice = 'thre'"),
      "a.toml:2: beta.choice = \"thre\": unknown, did you mean three?, allowed is one of one, two, three");
  EXPECT_EQ(error_of("[beta]\ntext = 5"), "a.toml:2: beta.text = 5: wrong type, allowed is a text");
  EXPECT_EQ(error_of("[beta.text]\nx = 5"), "a.toml:1: beta.text: a section, allowed is a text");
  EXPECT_EQ(error_of("[beta]\ntext = 1979-05-27"), "a.toml:2: beta.text: a date or time, allowed is a text");
  EXPECT_THAT(error_of("[alpha]\ncount = 1\ncount = 2\n"), testing::StartsWith("a.toml:3: not TOML: "));
  EXPECT_THAT(error_of("[alpha\n"), testing::StartsWith("a.toml:1: not TOML: "));
}

TEST(Config, OverridesSayCommandLine) {
  EveryKind v;
  Config c = declare(v);
  c.set("alpha.flag", "true");
  c.set("alpha.count", "+4");
  c.set("beta.rate", "1e-3");
  c.set("beta.pair", "0.1, 0.2");
  c.set("beta.text", "1 = \"x\"");
  c.set("beta.choice", "three");
  EXPECT_TRUE(v.flag);
  EXPECT_EQ(v.count, 4);
  EXPECT_EQ(v.rate, 1e-3);
  EXPECT_EQ(v.pair, (std::array{0.1, 0.2}));
  EXPECT_EQ(v.text, "1 = \"x\"");
  EXPECT_EQ(v.choice, "three");
  c.set("beta.pair", "[0.3,0.4]");
  EXPECT_EQ(v.pair, (std::array{0.3, 0.4}));
  EXPECT_EQ(c.origin("beta.pair"), "command line");

  EXPECT_EQ(override_error("alpha", "1"), "command line: \"alpha\": an override has the form section.key");
  EXPECT_EQ(override_error("alpha.cuont", "1"),
            "command line: unknown key \"cuont\" in section alpha, did you mean count?; there are: flag, "
            "count, big");
  EXPECT_EQ(
      override_error("alpha.count", "4x"),
      "command line: alpha.count = \"4x\": wrong type, allowed is a whole number at least 1 and at most 10");
  EXPECT_EQ(override_error("alpha.count", "99999999999999999999"),
            "command line: alpha.count = \"99999999999999999999\": wrong type, allowed is a whole number at "
            "least 1 and at most 10");
  EXPECT_EQ(
      override_error("alpha.count", "-1"),
      "command line: alpha.count = -1: out of range, allowed is a whole number at least 1 and at most 10");
  EXPECT_EQ(override_error("alpha.flag", "1"),
            "command line: alpha.flag = \"1\": wrong type, allowed is true or false");
  EXPECT_EQ(override_error("beta.pair", "0.1"),
            "command line: beta.pair = 0.1: wrong type, allowed is two numbers, each at least 0 and below 1");
  EXPECT_EQ(override_error("beta.rate", ""),
            "command line: beta.rate = \"\": wrong type, allowed is a number above 0");
  EXPECT_EQ(override_error("beta.text", "\xC3("),
            "command line: beta.text = \"\\xC3(\": not UTF-8, allowed is a text");
}

TEST(Config, WhatItPrintsIsReadBackEqual) {
  EveryKind v{
      .flag = true, .count = 9, .big = 1LL << 52, .rate = 1e-8, .pair = {0.1, 1.0 / 3}, .choice = "three"};
  v.text = "quote \" backslash \\ newline \n bell \a \xC3\xA9";
  Config c = declare(v);
  const std::string printed = c.print();
  EveryKind back;
  Config d = declare(back);
  d.read_text(printed, "printed");
  EXPECT_EQ(back.flag, v.flag);
  EXPECT_EQ(back.count, v.count);
  EXPECT_EQ(back.big, v.big);
  EXPECT_EQ(back.rate, v.rate);
  EXPECT_EQ(back.pair, v.pair);
  EXPECT_EQ(back.text, v.text);
  EXPECT_EQ(back.choice, v.choice);
  EXPECT_EQ(d.print(), printed);
  EXPECT_THAT(printed, testing::HasSubstr(
                           "count = 9  # a number of things; a whole number at least 1 and at most 10\n"));
}

TEST(Config, HostileTextIsRefusedWithoutACrash) {
  const auto one_line = [](const std::string& message) {
    EXPECT_NE(message, "accepted");
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  constexpr std::size_t kSize = 32000;
  one_line(error_of("alpha.count = " + std::string(kSize, '[')));  // tree_test.cpp has more such texts
  one_line(error_of(std::string(kSize, '"')));
  one_line(error_of("[alpha]\n\"a\\nb\" = 1"));
  one_line(error_of(std::string("[alpha]\ncount = 1\0", 18)));
  one_line(error_of("\xFF\xFE[alpha]"));

  EveryKind v;
  expect_one_line_for_changed(declare(v).print(), 20'000, error_of);
}

}  // namespace
}  // namespace starling
