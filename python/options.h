// Python's options as C++ has them.
#pragma once

#include <string>
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
  // An option in a group is a number, a tensor of one number, or several of these.
  void set(Rule& rule, const py::dict& group) const;

 private:
  Rule defaults_;
  std::vector<py::str> keys_;  // of the groups, in the order of rule_values()
};

// By the rules' names: {"options": {name: default}, "states": {name in files: torch's name}}.
py::dict rules();

// Keyword arguments. Throws TypeError for an unknown one, with the nearest, and for a wrong type.
Options options_of(const py::dict& given);

// The traits of a scheme that Python needs before there is an optimizer.
py::dict scheme_traits(const std::string& name);

}  // namespace starling
