#include "starling/optim/schemes/edge_vectors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "starling/core/crc32c.h"
#include "starling/core/random.h"
#include "starling/optim/schemes/matrix_products.h"

namespace starling {
namespace {

constexpr std::uint64_t kSeedOfVectors = 0x706f776572676f73ULL;

}  // namespace

std::array<float, ProductForm::kChecksum> EdgeVectors::Edge::checksum() const {
  const std::uint32_t sum = crc32c(std::as_bytes(std::span(v)), static_cast<std::uint32_t>(turn));
  return {static_cast<float>(sum >> 16), static_cast<float>(sum & 0xffffU)};
}

void EdgeVectors::attach(const std::set<int>& neighbours) {
  std::erase_if(edges_, [&](const auto& entry) { return !neighbours.contains(entry.first); });
  for (const int j : neighbours) {
    std::vector<Edge>& edges = edges_[j];
    for (std::size_t b = edges.size(); b < forms_.size(); ++b) edges.push_back(fresh(j, b));
  }
}

void EdgeVectors::restart() {
  for (const auto& [neighbour, edges] : edges_) {
    for (std::size_t b = 0; b < edges.size(); ++b) renew(neighbour, b);
  }
}

// The same at both ends.
EdgeVectors::Edge EdgeVectors::fresh(int neighbour, std::size_t block) const {
  Edge edge{.v = std::vector<float>(forms_[block].products)};
  for (const ProductForm::Matrix& m : forms_[block].matrices)
    set_random(m.product(std::span(edge.v), 1), neighbour, block, m, 1);
  return edge;
}

void EdgeVectors::set_random(std::span<float> v, int neighbour, std::size_t block,
                             const ProductForm::Matrix& m, int turn) const {
  const auto [low, high] = std::minmax(rank_, neighbour);
  const std::uint64_t key =
      random_bits({kSeedOfVectors, static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high),
                   static_cast<std::uint64_t>(block), m.segment, static_cast<std::uint64_t>(turn)});
  for (std::size_t c = 0; c < v.size(); ++c)
    v[c] = static_cast<float>(2 * uniform_of(random_bits({key, c})) - 1);
  starling::normalise(v);
}

void EdgeVectors::normalise(std::span<float> v, int neighbour, std::size_t block,
                            const ProductForm::Matrix& m, int turn) const {
  if (!starling::normalise(v)) set_random(v, neighbour, block, m, turn);
}

void EdgeVectors::state(StateVisitor& visitor) {
  const auto each = [this](const auto& f) {
    for (const auto& [neighbour, edges] : edges_) {
      for (std::size_t b = 0; b < edges.size(); ++b) {
        if (!forms_[b].matrices.empty()) f(neighbour, b);
      }
    }
  };
  StateVisitor::Numbers numbers;
  const auto add = [](std::vector<double>& to, const Edge& edge) {
    to.push_back(edge.turn);
    to.insert(to.end(), edge.v.begin(), edge.v.end());
  };
  each([&](int neighbour, std::size_t block) {
    add(numbers.fresh, fresh(neighbour, block));
    add(numbers.now, of(neighbour, block));
  });
  if (numbers.now.empty()) return;
  numbers.set = [this, each](std::span<const double> given) {
    each([&](int neighbour, std::size_t block) {
      Edge& here = of(neighbour, block);
      here.turn = static_cast<int>(given[0]);
      std::ranges::transform(given.subspan(1, here.v.size()), here.v.begin(),
                             [](double value) { return static_cast<float>(value); });
      given = given.subspan(1 + here.v.size());
    });
  };
  numbers.refusal = [this, each](std::span<const double> given) {
    bool good = std::ranges::all_of(given, [](double value) { return std::abs(value) <= 1; });
    each([&](int, std::size_t block) {
      good = good && (given[0] == 0 || given[0] == 1);
      given = given.subspan(1 + forms_[block].products);
    });
    return std::string(good ? "" : "wants turns of 0 or 1, each with vectors of length 1");
  };
  visitor.numbers("directions", numbers);
}

}  // namespace starling
