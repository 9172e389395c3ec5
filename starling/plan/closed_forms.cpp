#include "starling/plan/closed_forms.h"

#include <algorithm>
#include <cstddef>

namespace starling {

double step_ahead(double F, double B, const std::vector<double>& u, const std::vector<double>& c) {
  double U = 0, C = 0, longest = 0;
  for (std::size_t i = 0; i < u.size(); ++i) {
    U += u[i];
    C += c[i];
    longest = std::max(longest, u[i] + c[i]);
  }
  return std::max({F + B + U, C, longest});
}

double step_inside(double F, double B, const std::vector<double>& u, const std::vector<double>& c) {
  double updated = 0, sent = 0;
  for (std::size_t i = 0; i < u.size(); ++i) {
    updated += u[i];
    sent = std::max(sent, updated) + c[i];
  }
  return F + B + sent;
}

double all_reduce_step(double F, const std::vector<double>& b, const std::vector<double>& c, double U) {
  double S = F, E = F;
  for (std::size_t i = 0; i < b.size(); ++i) {
    S += b[i];
    E = std::max(E, S) + c[i];
  }
  return E + U;
}

}  // namespace starling
