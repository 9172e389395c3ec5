// The properties of every scheme of the table, whatever its algorithm:
//
//   scheme_contract_test.cpp   what is kept, and what is saved
//   scheme_alone_test.cpp      one worker alone
//   scheme_runs_test.cpp       two runs of several workers, which must agree
//
// scheme_equations_test.cpp has the equations, scheme_refusals_test.cpp the refusals.
#pragma once

#include "starling/optim/options.h"
#include "starling/optim/schemes.h"
#include "tests/optim/every_scheme.h"

namespace starling {

using namespace std::chrono_literals;

class SchemeContract : public EveryScheme {
 protected:
  // p has a zero gradient in every step, q none.
  void expect_the_mean_is_kept(at::ScalarType type) const;
};

}  // namespace starling
