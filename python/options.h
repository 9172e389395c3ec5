// Python's options as C++ has them.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include "starling/optim/optimizer.h"
#include "starling/optim/rule_step.h"

namespace starling {

namespace py = pybind11;

// A rule whose options are in the parameter groups of Python's optimizer.
class PythonRule {
 public:
  explicit PythonRule(const std::string& name);  // throws UsageError if there is none
  Rule of(const py::dict& group) const {
    Rule rule = defaults_;
    set(rule, group);
    return rule;
  }
  // An option in a group is a number, a tensor of one number, several of these, or a choice's name.
  // Throws TypeError for others.
  void set(Rule& rule, const py::dict& group) const;

 private:
  Rule defaults_;
  struct Key {
    py::str name;
    std::span<const std::string_view> choices;
    std::size_t several;  // numbers in a tuple or a list; 0: it is one number
  };
  std::vector<Key> keys_;  // of the groups, in the order of rule_values()
};

// By the rules' names: {"options": {name: default}, "states": {name in files: torch's name}}.
py::dict rules();

// Throws UsageError, in the argument's name, if the seconds are out of the range of a wait.
std::chrono::milliseconds milliseconds_of(std::string_view name, double seconds);

// Keyword arguments. Throws TypeError for an unknown one, with the nearest, and for a wrong type.
Options options_of(const py::dict& given);

// The traits of a scheme that Python needs before there is an optimizer.
py::dict scheme_traits(const std::string& name);

}  // namespace starling
