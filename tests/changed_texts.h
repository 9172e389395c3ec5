// Texts of which some bytes are changed.
#pragma once

#include <functional>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace starling {

// error_of(text), the message of a refusal, must be one line for every changed text.
inline void expect_one_line_for_changed(const std::string& valid, int texts,
                                        const std::function<std::string(const std::string&)>& error_of) {
  std::mt19937 random(7);
  for (int i = 0; i < texts; ++i) {
    std::string text = valid;
    for (auto changes = 1 + random() % 4; changes > 0; --changes)
      text[random() % text.size()] = static_cast<char>(random());
    const std::string message = error_of(text);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

}  // namespace starling
