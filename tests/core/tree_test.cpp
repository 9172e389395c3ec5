// config_test.cpp has hostile TOML in recipes. This file tests the rest of the tree, and JSON.
#include "starling/core/tree.h"

#include <filesystem>

#include <gmock/gmock.h>

#include "tests/changed_texts.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using Parse = Node (*)(std::string_view, const std::string&);

std::string error_of(Parse parse, const std::string& text) {
  return refusal<UsageError>([&] { parse(text, "a"); });
}

// The tree in one line, each value with its line.
std::string shown(const Node& node) {
  std::string text;
  if (const auto* table = node.as<Node::Table>()) {
    for (const Member& m : *table) text += m.name + "@" + std::to_string(m.line) + "=" + shown(m.node) + " ";
    text = "{" + text + "}";
  } else if (const auto* array = node.as<Node::Array>()) {
    for (const Node& element : *array) text += shown(element) + " ";
    text = "[" + text + "]";
  } else if (const auto* s = node.as<std::string>()) {
    text = in_quotes(*s);
  } else if (const auto* i = node.as<std::int64_t>()) {
    text = std::to_string(*i);
  } else if (const auto* d = node.as<double>()) {
    text = std::to_string(*d);
  } else if (const auto* b = node.as<bool>()) {
    text = *b ? "true" : "false";
  } else {
    text = node.kind();
  }
  return text + ":" + std::to_string(node.line);
}

TEST(Tree, BothLanguagesSayTheSame) {
  EXPECT_EQ(shown(parse_toml("b = [1,\n2.5]\na = 'x'\n[t]\nc = true\n", "a")),
            "{a@3=\"x\":3 b@1=[1:1 2.500000:2 ]:1 t@4={c@5=true:5 }:4 }:1");
  EXPECT_EQ(shown(parse_json("{\"b\": [1,\n2.5\n],\n\"a\": \"x\", \"t\":\n{\"c\": true, \"n\": null}}", "a")),
            "{a@4=\"x\":4 b@1=[1:1 2.500000:2 ]:1 t@4={c@5=true:5 n@5=null:5 }:5 }:1");
  EXPECT_EQ(parse_toml("a = 1979-05-27", "a").as<Node::Table>()->front().node.kind(), "a date or time");
}

TEST(Tree, LinesOfAFileKeepTheirNumbers) {
  EXPECT_EQ(shown(parse_json_line(R"({"a": [1]})", "a", 7)), "{a@7=[1:7 ]:7 }:7");
  const auto error = [](const char* line) {
    return refusal<UsageError>([&] { parse_json_line(line, "a", 7); });
  };
  EXPECT_EQ(error("[1]"), "a:7: it must contain one object, not an array");
  EXPECT_THAT(error("{\"a\":"), testing::StartsWith("a:7: not JSON: "));
  EXPECT_EQ(error("{\"a\": 1, \"a\": 2}"), "a:7: \"a\" stands twice in one table");
}

TEST(Tree, JsonMistakes) {
  EXPECT_EQ(error_of(parse_json, "[1]"), "a: it must contain one object, not an array");
  EXPECT_EQ(error_of(parse_json, "{\"a\": 1,\n\"b\": 1,\n\"a\": 2}"), "a:3: \"a\" stands twice in one table");
  EXPECT_THAT(error_of(parse_json, "{\"a\":\n1,}"), testing::StartsWith("a:2: not JSON: "));
  EXPECT_THAT(error_of(parse_json, "{} x"), testing::StartsWith("a:1: not JSON: "));
  EXPECT_THAT(error_of(parse_json, "{\"a\": 1e999}"), testing::StartsWith("a:1: not JSON: "));
  EXPECT_THAT(error_of(parse_json, "{\"a\": nan}"), testing::StartsWith("a:1: not JSON: "));
  EXPECT_THAT(error_of(parse_json, "{\"a\": \"\xFF\"}"), testing::StartsWith("a:1: not JSON: "));
  // Too large for an integer: a real number.
  EXPECT_EQ(parse_json("{\"a\": 18446744073709551615}", "a").as<Node::Table>()->front().node.kind(),
            "a number");
}

TEST(Tree, TomlMayHoldEveryLetterWhereTextIs) {
  // Debian's toml++ takes most of them for impossible where it looks for white space.
  for (const char* letter : {"é", "\xce\xb1", "中", "\xef\xb6\xbf", "\xef\xbb\xbf", "\xe3\x80\x80", "🙂"}) {
    const std::string l = letter;
    const Node root =
        parse_toml("\"" + l + "\" = '" + l + "' # " + l + "\nb = \"\"\"x\\\n  " + l + "\"\"\"\n", "a");
    const auto& table = *root.as<Node::Table>();
    ASSERT_EQ(table.size(), 2U);
    EXPECT_EQ(*table[1].node.as<std::string>(), l);
    for (const std::string& text : {"\"\"" + l + "\"", "a = " + l, l + " = 1", "a = 1" + l, "a = \"x\"" + l,
                                    "a = \"\"\"\\" + l + "\"\"\"", "a = [1," + l + "]", "[" + l + "]"}) {
      const std::string said = error_of(parse_toml, text);  // white space is none, and accepted
      EXPECT_TRUE(said == "accepted" || said.starts_with("a:1: not TOML: ") ||
                  said == "a: not TOML: a key is malformed")
          << said;
    }
  }
  EXPECT_THAT(error_of(parse_toml, "a = é"), testing::StartsWith("a:1: not TOML: "));
}

TEST(Tree, BytesThatAreNoUtf8AreRefusedWithTheirLine) {
  EXPECT_EQ(error_of(parse_toml, "a = 1\n# \xff\n"), "a:2: not TOML: not UTF-8");
  EXPECT_EQ(error_of(parse_toml, "a = 1\n\nb = '\xed\xa0\x80'"), "a:3: not TOML: not UTF-8");
  EXPECT_EQ(error_of(parse_toml, "a = \"\xc3"), "a:1: not TOML: not UTF-8");
}

std::string repeated(std::string_view part, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += part;
  return text;
}

TEST(Tree, DeepTextsAreRefusedWithoutACrash) {
  constexpr std::size_t kSize = 1 << 20;
  const auto one_line = [](const std::string& message) {
    EXPECT_NE(message, "accepted");
    EXPECT_EQ(message.find('\n'), std::string::npos);
  };
  EXPECT_EQ(error_of(parse_json, "{\"a\":" + repeated("[", kSize)), "a: nested deeper than 32 levels");
  EXPECT_EQ(error_of(parse_json, repeated("{\"a\":", kSize / 5)), "a: nested deeper than 32 levels");
  EXPECT_EQ(error_of(parse_toml, "a = " + repeated("[", 40) + repeated("]", 40)),
            "a: nested deeper than 32 levels");
  one_line(error_of(parse_toml, "a = " + repeated("[", kSize)));
  one_line(error_of(parse_toml, "a = " + repeated("{a=", kSize / 3)));
  one_line(error_of(parse_toml, "a = " + repeated("{" + repeated("a.", 200) + "a = [\n", 77)));
  // Every kind of dot that joins keys.
  for (const std::string link : {"a.", "1.", "1.1 . ", "' 1.1 '.", "\"a,\".", "'['. ", "1.1."}) {
    const std::string keys = repeated(link, kSize / link.size());
    one_line(error_of(parse_toml, keys + "a = 1"));
    one_line(error_of(parse_toml, "[" + keys + "a]"));
    one_line(error_of(parse_toml, "a = {" + keys + "a = 1}"));
    // The largest allowed number.
    one_line(error_of(parse_toml, repeated(link, 999) + "a = 1"));
  }
  EXPECT_EQ(error_of(parse_toml, repeated("a.", kSize) + "a = 1"),
            "a: more than 1000 dots outside of numbers: its keys are nested too deep");
  // The deepest text that reaches the parser: numbers for every other key, in nested tables.
  std::string nested = "a = ";
  for (int level = 0; level < 200; ++level) nested += "{" + repeated("1.1 . ", 5) + "1.1 = ";
  one_line(error_of(parse_toml, nested));
}

TEST(Tree, ManyNumbersAreNoDeepText) {
  const std::string numbers = "a = [" + repeated("0.5, -1.25,\n+3.5e-3,", 10'000) + "1.0]";
  EXPECT_EQ(parse_toml(numbers, "a").as<Node::Table>()->front().node.as<Node::Array>()->size(), 30'001u);
}

TEST(Tree, ChangedJsonIsAcceptedOrRefusedInOneLine) {
  const std::string valid = "{\"a\": [1, 2.5, \"x\", {\"b\": null, \"c\": true}], \"d\": {}}";
  expect_one_line_for_changed(valid, 20'000, [](const auto& text) { return error_of(parse_json, text); });
}

TEST(Tree, FilesThatCannotBeReadAreNamed) {
  const auto read = [](const std::string& path) {
    return refusal<UsageError>([&] { read_at_most(path, 32'768, "recipe"); });
  };
  EXPECT_EQ(read("/no/such/file.toml"), "/no/such/file.toml: cannot be opened: No such file or directory");
  EXPECT_EQ(read("/dev/zero"), "/dev/zero: larger than 32768 bytes, so it is no recipe");
  const std::string folder = std::filesystem::temp_directory_path();
  EXPECT_EQ(read(folder), folder + ": cannot be read: Is a directory");
}

}  // namespace
}  // namespace starling
