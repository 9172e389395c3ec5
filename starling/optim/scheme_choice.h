// A scheme by its name, with options of its own:
//
//   {.scheme = "NAME"}                             its options have their defaults
//   {.scheme = {"NAME", {{"OPTION", 0.5}}}}        checked when the optimizer is made
//   {.scheme = scheme::Name{.option = 0.5}}        checked by the compiler: starling/optim/schemes.h
//
// `starling schemes` lists the schemes, `starling schemes NAME` one with its options.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace starling {

// A number of an integer option may be given to an option of real numbers.
using SchemeValue = std::variant<std::int64_t, double, std::string>;
using SchemeValues = std::vector<std::pair<std::string, SchemeValue>>;

struct SchemeChoice {
  SchemeChoice();  // the first scheme of the table
  // Not explicit: a name is a choice.
  SchemeChoice(const char* name) : name(name) {}
  SchemeChoice(std::string name, SchemeValues options = {})
      : name(std::move(name)), options(std::move(options)) {}

  std::string name;
  SchemeValues options;  // those that were given; a name that stands twice: the last one counts
};

}  // namespace starling
