// The words in which a rule's file describes the options and the state of its rule.
//
// The last part of such a file specializes RuleInfo. Everything that names rules or their options
// reads it there: recipes, Python, messages, checkpoints.
//
// GPUs compile the file's other part too, the formula; the host's part stands in #ifndef
// __CUDACC_RTC__.
#pragma once

#ifndef __CUDACC_RTC__
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "starling/core/range.h"

namespace starling {

// An option is a double, an int, a bool, two doubles or an enum. Its default is in the struct of
// the options.
struct RuleOption {
  std::string_view name;
  Range range = {};
  std::string_view help = {};
  std::string_view needs = {};  // of a bool: an option that must be above 0 if this one is true
  std::span<const std::string_view> choices = {};  // of an enum: its values, from 0
  std::string_view key = {};  // in recipes, if another rule has this name with another default
};

// Every rule has an `lr`, first of its options: learning-rate schedules set it.
inline constexpr RuleOption kLearningRate{.name = "lr", .range = at_least(0), .help = "learning rate"};

// A state of the size of the parameter.
struct RuleStateName {
  std::string_view name;   // the paper's letter, as in Starling's files
  std::string_view torch;  // its name in a state_dict of torch's optimizer
};

// The description of a rule with the options `Options`:
//
//   kName         the name in C++ and Python
//   kKey          the name in recipes
//   kStates       all states that it may keep, in the order in which its steps take them
//   kDecoupled    whether weight_decay shrinks the parameters themselves, and not by the gradient
//   each_option   (Options& o, f): f(RuleOption, o.option) for each option after lr, in an order
//                 that files depend on. o may be const.
//   step<Step>    (const Options& o, t): the coefficients of step t = 1, 2, .. as the variant Step
//
// A rule whose direction needs a whole matrix has two more. Torch computes that direction before
// the pass, which sees one element at a time and takes the direction as the gradient
// (optim/direction.h).
//
//   takes_whole        (const Options& o, dimensions): whether a parameter is such a matrix
//   matrix_step<Step>  (const Options& o, rows, columns): its coefficients; a step without states
template <class Options>
struct RuleInfo;

}  // namespace starling
#endif
