#include "starling/optim/schemes/product_form.h"

#include <algorithm>

namespace starling {

ProductForm::ProductForm(const Block& block) {
  std::array<std::size_t, 2> ends{};
  for (std::size_t k = 0; k < block.segments.size(); ++k) {
    const Segment& s = block.segments[k];
    const std::int64_t rows = s.parameter.dim() > 1 ? s.parameter.size(0) : 1, columns = s.length / rows;
    if (rows == 1 || columns == 1) {
      others.push_back(k);
      values += static_cast<std::size_t>(s.length);
      continue;
    }
    const int shorter = ends[0] <= ends[1] ? 0 : 1;  // takes the longer product
    const Matrix m{k, rows, columns, rows > columns ? shorter : 1 - shorter, ends};
    ends[0] += m.length(0), ends[1] += m.length(1);
    matrices.push_back(m);
  }
  products = std::max(ends[0], ends[1]);
}

std::size_t slots_of(const Schedule& schedule) {
  std::size_t most = 0;
  for (const Graph& graph : schedule.rounds) {
    for (const auto& neighbours : graph.neighbours) most = std::max(most, neighbours.size());
  }
  return most;
}

}  // namespace starling
