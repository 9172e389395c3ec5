// PowerGossip's exchange: C_ij(x_j - x_i) of each neighbour j (power_gossip.cpp), from the products
// that cross the link (product_form.h).
//
// The exchange sends one block to all neighbours, and each reads its own slot. The matrices of a
// worker with d neighbours thus cost d^2 products a round. Rounds of pairs (base-2, one-peer-ring,
// matchings) have one slot.
//
// Both ends take a swap or neither does, with the same bits: so X_i and X_j move in opposite
// directions, which keeps the sum of all x, and v stays common to both. An end that was in doubt
// takes the swap late, and may have sent a product of an older v before. Then, or if the ends have
// loaded different states, one of the checksums is not that of v. Both ends see that. They mix no
// matrices of that swap, and the edge begins again with random v.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/optim/schemes/edge_vectors.h"
#include "starling/optim/schemes/product_form.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {

class ProductExchange {
 public:
  explicit ProductExchange(const World& world) : rank_(world.rank) {}

  void attach(const Connection& connection, std::span<const Block> blocks);
  void restart() { vectors_.restart(); }
  void state(StateVisitor& visitor) { vectors_.state(visitor); }

  void send(Block& block);
  // Waits for the neighbours. Returns Sum_j W_ij C_ij(x_j - x_i) as one arrival, or nothing. It is
  // valid until the next call.
  std::vector<Arrival> arrived(const Block& block);

 private:
  const Graph& graph(std::uint64_t round) const { return schedule_.at(static_cast<long long>(round - 1)); }
  bool write(Block& block, std::span<float> to);
  void take(const Block& block, const Arrival& swap);
  void take_matrices(const Block& block, const Arrival& swap, std::span<const float> mine,
                     std::span<const float> theirs);
  void move(const Block& block, const ProductForm::Matrix& m, std::span<const float> a,
            std::span<const float> b);

  const int rank_;
  Exchange* exchange_ = nullptr;
  Schedule schedule_;
  std::size_t slots_ = 0;           // of a wire block
  std::vector<ProductForm> forms_;  // by block
  EdgeVectors vectors_{rank_, forms_};
  at::Tensor x_, moves_;  // on the host, as long as the longest block
  Zeros zeros_;
};

}  // namespace starling
