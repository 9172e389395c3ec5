// PowerGossip's matrices beside plain loops in double. scheme_equations_test.cpp has parameters of
// one dimension, resume_test.cpp has saving.
#include <set>
#include <utility>

#include "starling/topology/schedules.h"
#include "tests/mixed.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;

constexpr double kLr = 0.125;
constexpr int kSeen = 3, kSteps = 14;  // the loops begin after step kSeen, since v is random before

// The gradient of value c, exact in bf16.
double pull(int i, int t, std::size_t c) {
  return std::round(64 * std::sin(0.7 * static_cast<double>(c + 1) * (1 + 0.1 * i) + 0.3 * t)) / 64;
}

Tensor pulls(int i, int t, const Tensor& like) {
  Tensor g = at::zeros({like.numel()});
  for (std::int64_t c = 0; c < g.numel(); ++c)
    g.mutable_data_ptr<float>()[c] = static_cast<float>(pull(i, t, static_cast<std::size_t>(c)));
  return g.view(like.sizes()).to(like.scalar_type());
}

std::vector<double> numbers_of(const Tensor& tensor) {
  const Tensor all = tensor.detach().to(at::kDouble).contiguous();
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

struct PowerCase {
  const char* topology = "ring";
  int n = 4;
  std::vector<std::int64_t> shape{6, 4};
  at::ScalarType type = at::kFloat;
};

// One worker between two steps.
struct Seen {
  std::vector<double> x, w;  // the matrix, by rows, and a parameter of one dimension
  std::vector<double> directions;
};

Seen seen(const Optimizer& optimizer, bool narrow) {
  const OptimizerState state = optimizer.state();
  const std::string kind = narrow ? "master" : "model";
  return {numbers_of(state.tensors.at(kind + ".0.0")), numbers_of(state.tensors.at(kind + ".0.1")),
          numbers_of(state.tensors.at("directions"))};
}

// v of an edge, at one end.
struct EdgeVector {
  int turn = 0;
  std::vector<double> v;
  bool operator==(const EdgeVector&) const = default;
};

// The equation, from what the workers had after step kSeen.
class PlainPowerGossip {
 public:
  PlainPowerGossip(const PowerCase& the, std::vector<Seen> all)
      : schedule_(make_schedule(the.topology, the.n)),
        rows_(static_cast<std::size_t>(the.shape.front())),
        columns_(all.front().x.size() / rows_),
        now_(std::move(all)) {
    std::map<std::pair<int, int>, EdgeVector> by_end;
    for (int i = 0; i < the.n; ++i) {
      std::set<int> neighbours;
      for (const Graph& graph : schedule_.rounds) {
        for (const Neighbour& j : graph.neighbours[static_cast<std::size_t>(i)]) neighbours.insert(j.rank);
      }
      auto next = now_[static_cast<std::size_t>(i)].directions.begin();
      for (const int j : neighbours) {
        EdgeVector& here = by_end[{i, j}];
        here.turn = static_cast<int>(*next++);
        const std::size_t length = of_rows(here.turn) ? columns_ : rows_;
        here.v.assign(next, next + static_cast<std::ptrdiff_t>(length));
        next += static_cast<std::ptrdiff_t>(std::max(rows_, columns_));
      }
      EXPECT_EQ(next, now_[static_cast<std::size_t>(i)].directions.end());
    }
    for (const auto& [ends, here] : by_end) {
      EXPECT_EQ(here, by_end.at({ends.second, ends.first}));
      if (ends.first < ends.second) edges_[ends] = here;
    }
  }

  // `t` counts from 1.
  void step(int t) {
    const Graph& graph = schedule_.at(t - 1);
    std::vector<std::vector<double>> moves(now_.size(), std::vector<double>(rows_ * columns_));
    for (int i = 0; i < graph.workers(); ++i) {
      for (const Neighbour& j : graph.neighbours[static_cast<std::size_t>(i)]) {
        if (j.rank < i) continue;
        const std::vector<double> moved = projected(i, j.rank);
        for (std::size_t c = 0; c < moved.size(); ++c) {
          moves[static_cast<std::size_t>(i)][c] += j.weight * moved[c];
          moves[static_cast<std::size_t>(j.rank)][c] -= j.weight * moved[c];
        }
      }
    }
    for (std::size_t c = 0; c < now_.front().w.size(); ++c) {
      std::vector<double> w;
      for (const Seen& one : now_) w.push_back(one.w[c]);
      w = mixed(w, graph);
      for (std::size_t i = 0; i < now_.size(); ++i)
        now_[i].w[c] = w[i] - kLr * pull(static_cast<int>(i), t, c);
    }
    for (std::size_t i = 0; i < now_.size(); ++i) {
      for (std::size_t c = 0; c < moves[i].size(); ++c)
        now_[i].x[c] += moves[i][c] - kLr * pull(static_cast<int>(i), t, c);
    }
  }

  const Seen& of(int i) const { return now_[static_cast<std::size_t>(i)]; }

 private:
  // The longer product goes first.
  bool of_rows(int turn) const { return turn == (rows_ > columns_ ? 0 : 1); }

  // C(x_j - x_i). Moves v.
  std::vector<double> projected(int i, int j) {
    EdgeVector& edge = edges_.at({i, j});
    const std::vector<double>&a = of(i).x, &b = of(j).x;
    std::vector<double> product(of_rows(edge.turn) ? rows_ : columns_), moved(rows_ * columns_);
    const auto each = [&](const auto& f) {
      for (std::size_t r = 0; r < rows_; ++r) {
        for (std::size_t c = 0; c < columns_; ++c) {
          const bool rows = of_rows(edge.turn);
          f(r * columns_ + c, product[rows ? r : c], edge.v[rows ? c : r]);
        }
      }
    };
    each([&](std::size_t at, double& sum, double v) { sum += (b[at] - a[at]) * v; });
    each([&](std::size_t at, double sum, double v) { moved[at] = sum * v; });
    const double norm = std::sqrt(std::inner_product(product.begin(), product.end(), product.begin(), 0.0));
    for (double& value : product) value /= norm;
    edge = {1 - edge.turn, product};
    return moved;
  }

  const Schedule schedule_;
  const std::size_t rows_, columns_;
  std::vector<Seen> now_;
  std::map<std::pair<int, int>, EdgeVector> edges_;
};

TEST(PowerGossipScheme, IsItsEquationForMatrices) {
  for (const PowerCase& the : {PowerCase{},
                               {.shape = {4, 6}},
                               {.topology = "base-2", .shape = {3, 2, 2, 2}},
                               {.topology = "complete", .n = 3},
                               {.topology = "star", .shape = {5, 5}},
                               {.shape = {3, 4}, .type = at::kBFloat16}}) {
    SCOPED_TRACE(testing::Message() << the.topology << " " << the.shape.front() << " rows");
    const bool narrow = the.type != at::kFloat;
    std::vector<Seen> first(static_cast<std::size_t>(the.n)), last = first;
    flock(the.n, [&](int i, World& world) {
      const Tensor x = parameter(the.shape, 0.5, the.type), w = parameter({5}, 0.5, the.type);
      Optimizer optimizer({x, w}, SGD{.lr = kLr}, {.topology = the.topology, .scheme = "power-gossip"},
                          world);
      for (int t = 1; t <= kSteps; ++t) {
        x.mutable_grad() = pulls(i, t, x), w.mutable_grad() = pulls(i, t, w);
        optimizer.step();
        if (t == kSeen) first[static_cast<std::size_t>(i)] = seen(optimizer, narrow);
      }
      last[static_cast<std::size_t>(i)] = seen(optimizer, narrow);
      expect_undisturbed(optimizer);
    });
    PlainPowerGossip plain(the, first);
    for (int t = kSeen + 1; t <= kSteps; ++t) plain.step(t);
    for (int i = 0; i < the.n; ++i) {
      const Seen& now = last[static_cast<std::size_t>(i)];
      EXPECT_THAT(now.x, testing::Pointwise(testing::DoubleNear(5e-5), plain.of(i).x)) << "worker " << i;
      EXPECT_THAT(now.w, testing::Pointwise(testing::DoubleNear(5e-5), plain.of(i).w)) << "worker " << i;
    }
  }
}

// Sets worker i's parameters to numbers of its own.
void set_apart(const std::vector<Tensor>& all, int i) {
  const c10::AutoGradMode no_gradient(false);
  for (const Tensor& p : all) {
    Tensor flat = at::arange(p.numel(), at::kFloat);
    if (p.numel() > 1000) {  // of rank one: few rounds bring it together
      const Tensor rows = at::sin(at::arange(p.size(0), at::kFloat) + 1.3 * i);
      flat = at::outer(rows, at::cos(at::arange(p.numel() / p.size(0), at::kFloat) * 0.7 * (i + 1)));
    } else {
      flat = at::sin(flat * 1.7 * (1 + 0.3 * i) + i);
    }
    p.copy_(flat.view(p.sizes()));
  }
}

// Some steps with gradients of zero. They keep the mean, and bring the workers together.
void expect_to_meet(Optimizer& optimizer, const std::vector<Tensor>& all, int steps) {
  const auto mean = [&] {
    const Consensus average(optimizer);
    std::vector<Tensor> flat;
    for (const Tensor& p : all) flat.push_back(p.detach().reshape({-1}).clone());
    return at::cat(flat);
  };
  const Tensor before = mean();
  const double distance = optimizer.consensus_distance();
  for (int t = 0; t < steps; ++t) {
    for (const Tensor& p : all) p.mutable_grad() = at::zeros_like(p.detach());
    optimizer.step();
  }
  nobody_leaves_yet(optimizer);
  EXPECT_TRUE(at::allclose(mean(), before, 0, 1e-5)) << (mean() - before).abs().max();
  EXPECT_LT(optimizer.consensus_distance(), 1e-3 * distance);
  nobody_leaves_yet(optimizer);
}

// Several matrices in a block, one that is larger than a block, and one whose memory has another
// order.
TEST(PowerGossipScheme, BringsMatricesOfAllShapesTogetherAndKeepsTheirSum) {
  for (const char* const topology : {"ring", "base-2"}) {
    SCOPED_TRACE(topology);
    flock(4, [&](int i, World& world) {
      const Tensor transposed = at::zeros({5, 9}).t().set_requires_grad(true);
      const std::vector<Tensor> all{parameter({8, 6}), parameter({7}),        parameter({3, 5, 2}),
                                    transposed,        parameter({300, 250}), parameter({1, 4}),
                                    parameter({2, 2})};
      Optimizer optimizer(all, SGD{.lr = 1}, {.topology = topology, .scheme = "power-gossip"}, world);
      set_apart(all, i);
      expect_to_meet(optimizer, all, 300);
    });
  }
}

// A neighbour's block has the products for all neighbours.
TEST(PowerGossipScheme, SendsOneProductForEachMatrixAndNeighbour) {
  struct {
    const char* topology;
    int n;
    std::uint64_t neighbours;
  } const cases[]{{"base-2", 4, 1}, {"ring", 2, 1}, {"ring", 4, 2}, {"complete", 4, 3}};
  for (const auto& the : cases) {
    SCOPED_TRACE(testing::Message() << the.topology << " " << the.n);
    // The products of one turn have 64 + 20 values, those of the other one 16 + 80.
    const std::uint64_t vector = 10, slot = 2 + 96;
    const std::uint64_t round = the.neighbours * (vector + the.neighbours * slot) * sizeof(float);
    flock(the.n, [&](int, World& world) {
      const std::vector<Tensor> all{parameter({10}), parameter({64, 16}), parameter({80, 20})};
      Optimizer optimizer(all, SGD{}, {.topology = the.topology, .scheme = "power-gossip"}, world);
      for (int t = 0; t < 20; ++t) optimizer.step();
      const std::uint64_t sent = optimizer.statistics().payload_sent;
      EXPECT_GE(sent, 20 * round);
      EXPECT_LE(sent, 21 * round);  // the last one is on its way
      nobody_leaves_yet(optimizer);
    });
  }
}

// As after a swap in doubt that one end has not taken yet.
TEST(PowerGossipScheme, EndsWithDifferentDirectionsBeginAgain) {
  flock(2, [](int i, World& world) {
    const std::vector<Tensor> all{parameter({8, 6})};
    Optimizer optimizer(all, SGD{.lr = 1}, {.topology = "ring", .scheme = "power-gossip"}, world);
    set_apart(all, i);
    optimizer.step(), optimizer.step(), optimizer.step();
    nobody_leaves_yet(optimizer);
    OptimizerState state = copy_of(optimizer.state());
    Tensor& directions = state.tensors.at("directions");
    ASSERT_EQ(directions.numel(), 1 + 8);
    const Tensor other = at::zeros({9}, at::kDouble);
    other[1] = 1;
    if (i == 1) directions = other;
    optimizer.set_state(state);
    expect_to_meet(optimizer, all, 60);
  });
}

}  // namespace
}  // namespace starling
