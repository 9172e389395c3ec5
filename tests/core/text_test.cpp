#include "starling/core/text.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace starling {
namespace {

using namespace std::string_literals;

TEST(Text, WhatCouldBreakALineOrObeyATerminalIsEscaped) {
  EXPECT_EQ(printable("plain, \"quoted\", C:\\, é, 中, 🙂"), "plain, \"quoted\", C:\\, é, 中, 🙂");
  EXPECT_EQ(printable("a\nb\r\tc\x1b[31m\x7f\0"s + "d"),
            "a\\u000Ab\\u000D\\u0009c\\u001B[31m\\u007F\\u0000d");
  // C1 controls, line and paragraph separators, and marks of direction.
  EXPECT_EQ(printable("\u0085\u009b\u2028\u2029\u200f\u202e\u2066\u061c"),
            "\\u0085\\u009B\\u2028\\u2029\\u200F\\u202E\\u2066\\u061C");
  // No UTF-8: a lone byte, a cut-off one, overlong forms, a surrogate, and beyond U+10FFFF.
  EXPECT_EQ(printable("\xff\xc3"), "\\xFF\\xC3");
  EXPECT_EQ(printable("\xc0\x8a\xe0\x80\x8a"), "\\xC0\\x8A\\xE0\\x80\\x8A");
  EXPECT_EQ(printable("\xed\xa0\x80\xf4\x90\x80\x80"), "\\xED\\xA0\\x80\\xF4\\x90\\x80\\x80");
}

TEST(Text, Utf8IsKnown) {
  for (const char* text :
       {"", "a", "é", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"}) {
    EXPECT_TRUE(is_utf8(text)) << text;
  }
  for (const char* text : {"\x80", "\xc3", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe4\xb8", "a\xffz"}) {
    EXPECT_FALSE(is_utf8(text)) << printable(text);
  }
}

TEST(Text, QuotesAreClosedByNoTextInThem) {
  EXPECT_EQ(in_quotes("a\"b\\c\n\xff"), "\"a\\\"b\\\\c\\u000A\\xFF\"");
  EXPECT_EQ(short_of(std::string(60, 'x')), '"' + std::string(60, 'x') + '"');
  EXPECT_EQ(short_of(std::string(61, 'x')), '"' + std::string(60, 'x') + "\"...");
  EXPECT_EQ(short_of(std::string(59, 'x') + "éé"), '"' + std::string(59, 'x') + "\"...");
}

TEST(Text, EveryErrorIsOneLine) {
  EXPECT_EQ(refusal([] { throw Error("a\nfile.toml: \xff"); }), "a\\u000Afile.toml: \\xFF");
  // No file makes it a long one.
  EXPECT_EQ(refusal([] { throw Error(std::string(1'999, 'x') + "éx"); }), std::string(1'999, 'x') + "...");
  EXPECT_EQ(refusal<UsageError>([] { throw UsageError("RANK='\x1b[2J'"); }), "RANK='\\u001B[2J'");
}

}  // namespace
}  // namespace starling
