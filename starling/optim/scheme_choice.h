// A scheme by its name, with its own options:
//
//   {.scheme = "NAME"}                         its options have their defaults
//   {.scheme = {"NAME", {{"OPTION", 0.5}}}}    checked when the optimizer is made
//   {.scheme = scheme::Name{.option = 0.5}}    checked by the compiler: starling/optim/schemes.h
//
// `starling schemes` lists the schemes; `starling schemes NAME` shows one with its options.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace starling {

// An option of real numbers also accepts an integer.
using SchemeValue = std::variant<std::int64_t, double, std::string>;
using SchemeValues = std::vector<std::pair<std::string, SchemeValue>>;

struct SchemeChoice {
  SchemeChoice();  // the first scheme of the table
  // Not explicit, since a name is a choice.
  SchemeChoice(const char* name) : name(name) {}
  SchemeChoice(std::string name, SchemeValues options = {})
      : name(std::move(name)), options(std::move(options)) {}

  std::string name;
  SchemeValues options;  // the given ones; the last value of a repeated name counts
};

}  // namespace starling
