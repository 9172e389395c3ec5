// PowerGossip: Vogels, Karimireddy & Jaggi 2020 (arXiv 2008.01425), with combine-then-adapt.
//
//   x_i(t+1) = x_i + Sum_j W_ij C_ij(x_j - x_i) - lr u(g_i(x_i))      x(t) on the right, as in cta
//
//   X       a parameter of two or more dimensions as a matrix: the first one by all others
//   D       X_j - X_i of an edge: the same at both ends, but for the sign
//   v       for each edge and matrix a vector of length 1, which both ends keep; random at first
//   turns   of an edge, which alternate: in each it exchanges one product
//
//     rows      sends X v       C(D) = (D v) v^T       then v <- D v / |D v|
//     columns   sends X^T v     C(D) = v (D^T v)^T     then v <- D^T v / |D^T v|
//
// A product of D is the difference of the two products that cross the link. Two turns are a step of
// power iteration, so v follows the largest singular vectors of D. C projects D. So mixing drives
// no workers apart, whatever W is, and there is nothing to tune. If D v = 0, v is random again.
// Parameters of one dimension, and matrices of one row or column, are mixed as in cta. The authors'
// code can also make several turns a round, and project to more than one vector (num_iterations and
// rank in gossip_run.py, github.com/epfml/powergossip @087eb09).
//
// product_exchange.h sends and takes the products, edge_vectors.h keeps v.

#include "starling/optim/schemes/product_exchange.h"
#include "starling/optim/schemes/product_form.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/topology/schedules.h"

namespace starling {
namespace {

std::size_t wire_values(const Block& block, const Schedule& schedule, const Options&) {
  return ProductForm(block).size(slots_of(schedule));
}

class PowerGossip final : public Scheme {
 public:
  explicit PowerGossip(const SchemeParts& parts) : Scheme(parts), products_(world_) {}

  bool sends_ahead() const override { return true; }

  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    products_.attach(connection, blocks_);
  }
  void begin() override {
    for (Block& block : blocks_) products_.send(block);
  }
  void restart() override { products_.restart(); }
  void take_mean() override {}
  void drain() override {
    for (Block& block : blocks_) mix(block, products_.arrived(block), {});
  }
  void state(StateVisitor& visitor) override { products_.state(visitor); }

  void step() override {
    if (!local_.is_fused()) {
      for (Block& block : blocks_) mix(block, products_.arrived(block), {});
      local_.all();
      for (Block& block : blocks_) products_.send(block);
      return;
    }
    const auto scale = local_.scale();
    for (Block& block : blocks_) {
      update(block, local_.rule(block), products_.arrived(block), {}, scale);
      products_.send(block);
    }
  }

 private:
  ProductExchange products_;
};

void check_symmetric(const Options&, const SchemeSettings&, const Schedule& schedule) {
  check_symmetric_rounds(schedule, "scheme \"power-gossip\"");
}

constexpr auto kRefused = all_but_fp32("it sends few values, as they are");

}  // namespace

extern constinit const SchemeInfo scheme_power_gossip{
    .name = "power-gossip",
    .summary = "PowerGossip: cta by one vector for each matrix and neighbour, with nothing to tune",
    .paper = "arXiv 2008.01425",
    .traits = {.path = Path::ahead,
               .contents = {.chooser = Chooser::sender},  // products of different edges have no mean
               .wire_values = wire_values,
               .refused_wires = kRefused,
               .all_values = "it sends products of matrices, not values",
               .on_host = true,
               .local_steps = true,
               .at_a_join = "the vectors of its products begin anew, at random"},
    .advice = {.good_for = "links a hundred times too slow, and models of large matrices",
               .topology = "base-2"},
    .make = make<PowerGossip>,
    .check = check_symmetric,
};

}  // namespace starling
