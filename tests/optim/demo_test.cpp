// DeMo beside plain loops in double: tiles, cosine transform, top-k, signs.
// scheme_equations_test.cpp has all values without signs, resume_test.cpp saving.
#include <numbers>

#include "tests/optim/every_scheme.h"
#include "tests/optim/fragile_network.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr int kDemoWorkers = 5, kDemoSteps = 12;
constexpr double kDemoLr = 0.01;

// Consecutive values as a matrix in tiles of h x w.
struct PlainTiles {
  std::size_t rows, columns, h, w;
};
struct DemoShape {
  std::vector<std::int64_t> sizes;
  bool transposed;
  std::vector<PlainTiles> tiles;
};
const std::vector<DemoShape> kDemoShapes{
    {{80, 48}, false, {{80, 48, 40, 48}}},
    {{70}, false, {{1, 64, 1, 64}, {1, 6, 1, 6}}},
    {{3, 2}, false, {{1, 6, 1, 6}}},  // 6 values are too few for a tile
    {{33, 130}, true, {{130, 33, 26, 33}}},
    {{8, 3, 3, 3}, false, {{8, 27, 8, 27}}},
    {{67, 1}, false, {{1, 64, 1, 64}, {1, 3, 1, 3}}},
};

Tensor demo_parameter(const DemoShape& shape) {
  if (!shape.transposed) return parameter(shape.sizes);
  return at::zeros({shape.sizes[1], shape.sizes[0]}).t().set_requires_grad(true);
}
// In the order in memory, as a copy.
Tensor in_memory_order(const DemoShape& shape, const Tensor& x) {
  return (shape.transposed ? x.detach().t() : x.detach()).contiguous().clone().reshape({-1});
}

using DemoNumbers = std::vector<double>;

// Calls f(indices of a tile's values, by rows) with each tile.
void each_plain_tile(const DemoShape& shape,
                     const std::function<void(const std::vector<std::size_t>&, const PlainTiles&)>& f) {
  std::size_t begin = 0;
  for (const PlainTiles& t : shape.tiles) {
    for (std::size_t top = 0; top < t.rows; top += t.h) {
      for (std::size_t left = 0; left < t.columns; left += t.w) {
        std::vector<std::size_t> at;
        for (std::size_t r = top; r < top + t.h; ++r) {
          for (std::size_t c = left; c < left + t.w; ++c) at.push_back(begin + r * t.columns + c);
        }
        f(at, t);
      }
    }
    begin += t.rows * t.columns;
  }
}

double demo_wave(std::size_t k, std::size_t i, std::size_t n) {
  const auto size = static_cast<double>(n);
  const double angle = std::numbers::pi * static_cast<double>((2 * i + 1) * k) / (2 * size);
  return std::sqrt((k == 0 ? 1 : 2) / size) * std::cos(angle);
}

// One axis of a tile of rows x columns: along_axis its rows' or columns' index.
DemoNumbers along_axis(const DemoNumbers& tile, std::size_t rows, std::size_t columns, bool down, bool back) {
  DemoNumbers to(tile.size());
  const std::size_t n = down ? rows : columns;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      for (std::size_t i = 0; i < n; ++i) {
        const double value = tile[down ? i * columns + c : r * columns + i];
        const std::size_t k = down ? r : c;
        to[r * columns + c] += value * (back ? demo_wave(i, k, n) : demo_wave(k, i, n));
      }
    }
  }
  return to;
}

DemoNumbers in_waves(const DemoNumbers& tile, const PlainTiles& t, bool back) {
  return along_axis(along_axis(tile, t.h, t.w, true, back), t.h, t.w, false, back);
}

struct DemoCase {
  int one_in = 8;
  const char* signs = "on";
  double decay = 0.9;
};

double demo_curvature(int i, std::size_t c) { return 1 + 0.4 * std::sin(0.37 * static_cast<double>(c) + i); }
double demo_centre(int i, std::size_t c) {
  return std::cos(0.11 * static_cast<double>(c) * (1 + 0.3 * i) + 2.0 * i);
}

// x by parameter, the same on all workers. The momentum holds values, as in the paper.
std::vector<DemoNumbers> plain_demo(const DemoCase& the) {
  std::vector<DemoNumbers> x;
  std::vector<std::vector<DemoNumbers>> momentum(kDemoWorkers);
  for (const DemoShape& shape : kDemoShapes) {
    std::int64_t n = 1;
    for (const std::int64_t size : shape.sizes) n *= size;
    x.emplace_back(static_cast<std::size_t>(n));
    for (auto& of : momentum) of.emplace_back(static_cast<std::size_t>(n));
  }
  for (int t = 0; t < kDemoSteps; ++t) {
    for (std::size_t k = 0; k < x.size(); ++k) {
      DemoNumbers all(x[k].size());
      for (int i = 0; i < kDemoWorkers; ++i) {
        DemoNumbers& m = momentum[static_cast<std::size_t>(i)][k];
        for (std::size_t c = 0; c < m.size(); ++c)
          m[c] = the.decay * m[c] + demo_curvature(i, c) * (x[k][c] - demo_centre(i, c));
        each_plain_tile(kDemoShapes[k], [&](const std::vector<std::size_t>& at, const PlainTiles& tiles) {
          DemoNumbers tile;
          for (const std::size_t c : at) tile.push_back(m[c]);
          const DemoNumbers waves = in_waves(tile, tiles, false);
          std::vector<std::size_t> order(waves.size());
          std::iota(order.begin(), order.end(), std::size_t{0});
          std::ranges::stable_sort(order, std::greater(), [&](std::size_t w) { return std::abs(waves[w]); });
          DemoNumbers chosen(waves.size());
          const auto one_in = static_cast<std::size_t>(the.one_in);
          for (std::size_t w = 0; w < (waves.size() + one_in - 1) / one_in; ++w)
            chosen[order[w]] = waves[order[w]];
          const DemoNumbers sent = in_waves(chosen, tiles, true);
          for (std::size_t w = 0; w < at.size(); ++w)
            m[at[w]] -= sent[w], all[at[w]] += sent[w] / kDemoWorkers;
        });
      }
      for (std::size_t c = 0; c < all.size(); ++c) {
        const double y = the.signs == std::string("on") ? (all[c] > 0) - (all[c] < 0) : all[c];
        x[k][c] -= kDemoLr * y;
      }
    }
  }
  return x;
}

Options options_for(const DemoCase& the) {
  return {.scheme = {"demo", {{"momentum_decay", the.decay}, {"signs", std::string(the.signs)}}},
          .one_in = the.one_in};
}

TEST(DemoScheme, IsItsEquation) {
  for (const DemoCase& the :
       {DemoCase{}, DemoCase{.signs = "off"}, DemoCase{.one_in = 64, .signs = "off", .decay = 0.999},
        DemoCase{.one_in = 1}, DemoCase{.one_in = 1, .signs = "off"}}) {
    SCOPED_TRACE(testing::Message() << "one in " << the.one_in << ", signs " << the.signs);
    const auto ends = results_of(kDemoWorkers, [&](int i, World& world) {
      std::vector<Tensor> parameters, now;
      for (const DemoShape& shape : kDemoShapes) parameters.push_back(demo_parameter(shape));
      Optimizer optimizer(parameters, SGD{.lr = kDemoLr}, options_for(the), world);
      for (int t = 0; t < kDemoSteps; ++t) {
        for (std::size_t k = 0; k < parameters.size(); ++k) {
          const Tensor x = in_memory_order(kDemoShapes[k], parameters[k]);
          auto* const g = x.mutable_data_ptr<float>();
          for (std::size_t c = 0; c < static_cast<std::size_t>(x.numel()); ++c)
            g[c] = static_cast<float>(demo_curvature(i, c) * (double{g[c]} - demo_centre(i, c)));
          const auto& sizes = kDemoShapes[k].sizes;
          parameters[k].mutable_grad() =
              kDemoShapes[k].transposed ? x.view({sizes[1], sizes[0]}).t() : x.view(sizes);
        }
        optimizer.step();
      }
      for (std::size_t k = 0; k < parameters.size(); ++k)
        now.push_back(in_memory_order(kDemoShapes[k], parameters[k]));
      expect_undisturbed(optimizer);
      return now;
    });
    const auto plain = plain_demo(the);
    for (std::size_t k = 0; k < plain.size(); ++k) {
      for (std::size_t i = 1; i < kDemoWorkers; ++i)
        EXPECT_TRUE(at::equal(ends[i][k], ends[0][k])) << i << ' ' << k;
      const Tensor should = at::tensor(plain[k], at::kDouble);
      EXPECT_TRUE(at::allclose(ends[0][k].to(at::kDouble), should, 1e-4, 1e-5))
          << "parameter " << k << ": " << (ends[0][k] - should).abs().max().item<double>();
    }
  }
}

// 64 x 64 values: 32 indices of 12 bits, two in a float, 32 values, and a sample of 4 values.
TEST(DemoScheme, SendsFewCoefficients) {
  flock(3, [](int, World& world) {
    const Tensor x = parameter({64, 64});
    Optimizer optimizer({x}, SGD{}, {.scheme = "demo", .one_in = 128}, world);
    for (int t = 0; t < 10; ++t) optimizer.step();
    EXPECT_EQ(optimizer.statistics().payload_sent, 10U * 2 * sizeof(float) * (32 / 2 + 32 + 4));
    nobody_leaves_yet(optimizer);
  });
}

// A worker whose gradient is not finite takes the others' step.
TEST(DemoScheme, AGradientThatIsNotFiniteDoesNotSpread) {
  const auto ends = results_of(3, [](int i, World& world) {
    LogLines warned;
    world.log = warned.log();
    const Tensor x = parameter({64, 2});
    Optimizer optimizer({x}, SGD{.lr = kDemoLr}, {.scheme = "demo", .one_in = 4}, world);
    for (int t = 0; t < 12; ++t) {
      x.mutable_grad() = at::full({64, 2}, 1.0 + i);
      if (t >= 5 && t < 8 && i == 1) x.mutable_grad()[3][1] = NAN;
      optimizer.step();
    }
    EXPECT_EQ(optimizer.statistics().aborted, 0U);
    EXPECT_EQ(warned.text().find("not finite") != std::string::npos, i == 1) << warned.text();
    nobody_leaves_yet(optimizer);
    return x.detach();
  });
  for (const Tensor& x : ends) {
    EXPECT_TRUE(at::equal(x, ends[0]));
    EXPECT_TRUE(at::allclose(x, at::full({64, 2}, -12 * kDemoLr)));
  }
}

TEST(DemoScheme, WorkersComeTogetherAgainAfterLostExchanges) {
  constexpr int kMany = 4;
  std::uint64_t aborted = 0;  // one worker at a time adds to it
  double most = 0;
  fragile_flock(kMany, [&](int rank, World& world, VirtualTime& time, FragileNetwork& network) {
    const Tensor x = parameter({40, 25});
    Optimizer optimizer({x}, SGD{.lr = kDemoLr}, {.scheme = "demo", .one_in = 4}, world);
    if (rank == 0) network.break_often(time, 60);
    for (int t = 0; t < 150; ++t) {
      time.sleep(10ms);
      const Tensor c = at::sin(at::arange(1000, at::kFloat) * (1.0 + rank) + 0.1 * t).view({40, 25});
      x.mutable_grad() = x.detach() - c;
      optimizer.step();
      if (t == 35) most = std::max(most, optimizer.consensus_distance());
    }
    aborted += optimizer.statistics().aborted + optimizer.statistics().late;
    nobody_leaves_yet(optimizer);
    const Consensus average(optimizer);
    EXPECT_LT(average.distance(), 1e-6);
  });
  EXPECT_GT(aborted, 0U) << "nothing was lost";
  EXPECT_GT(most, 1e-4) << "nothing came apart";
}

}  // namespace
}  // namespace starling
