// The texts in the metadata of an optimizer's state.
#include "starling/optim/state_text.h"

#include <algorithm>

#include "starling/kernels/modular.h"
#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  if (const auto grids = read_grids(bytes))
    check(std::ranges::all_of(*grids, [](int exponent) { return Grid::allows(exponent); }), "a grid outside");
  if (const auto position = read_position(bytes)) check(*position >= 0, "a negative position");
}
