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
// code can also make several turns a round, and project to more than one vector.
//
//   wire block   the values of the parameters that are no matrices; then a slot for each neighbour
//                of the round, by rank
//   slot         the checksum of all v of the edge and the block, and of their turn; the products.
//                Some matrices begin with rows, others with columns, which makes the turns of a
//                block about equally long. There is room for the longer one
//
// The exchange sends one block to all neighbours, and each reads its own slot. The matrices of a
// worker with d neighbours thus cost d^2 products a round. Rounds of pairs (base-2, one-peer-ring,
// matchings) have one slot. All blocks have as many slots as the worker with most neighbours needs.
//
// Both ends take a swap or neither does, with the same bits: so X_i and X_j move in opposite
// directions, which keeps the sum of all x, and v stays common to both. An end that was in doubt
// takes the swap late, and may have sent a product of an older v before. Then, or if the ends have
// loaded different states, one of the checksums is not that of v. Both ends see that. They mix no
// matrices of that swap, and the edge begins again with random v.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "starling/core/crc32c.h"
#include "starling/core/random.h"
#include "starling/kernels/update.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/vectors.h"
#include "starling/topology/schedules.h"

namespace starling {
namespace {

constexpr std::int64_t kGrain = 1 << 15;                // values of a matrix per thread, at least
constexpr std::size_t kChecksum = 2;                    // values
constexpr std::uint64_t kSeed = 0x706f776572676f73ULL;  // of random v

// ---------------------------------------------------------------- the form of a wire block

// Edges count their turns from 0 on, modulo 2.
struct Matrix {
  std::size_t segment;
  std::int64_t rows, columns;
  int turn_of_rows;
  std::array<std::size_t, 2> at;  // by turn: where its product begins, among all

  bool is_of_rows(int turn) const { return turn == turn_of_rows; }
  std::size_t length(int turn) const { return static_cast<std::size_t>(is_of_rows(turn) ? rows : columns); }
  template <class Float>
  std::span<Float> product(std::span<Float> all, int turn) const {
    return all.subspan(at[static_cast<std::size_t>(turn)], length(turn));
  }
};

struct Form {
  std::vector<std::size_t> others;  // segments that are no matrices
  std::vector<Matrix> matrices;
  std::size_t values = 0;    // of the others
  std::size_t products = 0;  // values of the products of the longer turn

  std::size_t slot() const { return matrices.empty() ? 0 : kChecksum + products; }
  std::size_t size(std::size_t slots) const { return values + slots * slot(); }
};

Form form_of(const Block& block) {
  Form form;
  std::array<std::size_t, 2> ends{};
  for (std::size_t k = 0; k < block.segments.size(); ++k) {
    const Segment& s = block.segments[k];
    const std::int64_t rows = s.parameter.dim() > 1 ? s.parameter.size(0) : 1, columns = s.length / rows;
    if (rows == 1 || columns == 1) {
      form.others.push_back(k);
      form.values += static_cast<std::size_t>(s.length);
      continue;
    }
    const int shorter = ends[0] <= ends[1] ? 0 : 1;  // takes the longer product
    const Matrix m{k, rows, columns, rows > columns ? shorter : 1 - shorter, ends};
    ends[0] += m.length(0), ends[1] += m.length(1);
    form.matrices.push_back(m);
  }
  form.products = std::max(ends[0], ends[1]);
  return form;
}

std::size_t most_neighbours(const Schedule& schedule) {
  std::size_t most = 0;
  for (const Graph& graph : schedule.rounds) {
    for (const auto& neighbours : graph.neighbours) most = std::max(most, neighbours.size());
  }
  return most;
}

std::size_t wire_values(const Block& block, const Schedule& schedule, const Options&) {
  return form_of(block).size(most_neighbours(schedule));
}

// ---------------------------------------------------------------- matrices and vectors

// A parameter's values, which lie as in its memory, as a matrix. A copy, if its indices have
// another order. So the bits do not depend on the order.
at::Tensor matrix_of(const at::Tensor& values, const Matrix& m, const at::Tensor& parameter) {
  return values.as_strided(parameter.sizes(), parameter.strides()).reshape({m.rows, m.columns}).contiguous();
}

std::int64_t grain(std::int64_t values) { return std::max<std::int64_t>(1, kGrain / values); }

double dot(const float* a, const float* b, std::int64_t n) {
  std::array<double, 8> lanes{};  // so that the compiler adds several numbers at once
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::int64_t l = 0; l < 8; ++l)
      lanes[static_cast<std::size_t>(l)] += double{a[i + l]} * double{b[i + l]};
  }
  for (; i < n; ++i) lanes[0] += double{a[i]} * double{b[i]};
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

// to <- X v. The bits of these functions do not depend on the number of threads.
void multiply(const at::Tensor& matrix, const float* v, float* to) {
  const std::int64_t columns = matrix.size(1);
  const auto* const x = matrix.const_data_ptr<float>();
  at::parallel_for(0, matrix.size(0), grain(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = static_cast<float>(dot(x + i * columns, v, columns));
  });
}

// to <- X^T v
void multiply_transposed(const at::Tensor& matrix, const float* v, float* to) {
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const auto* const x = matrix.const_data_ptr<float>();
  at::parallel_for(0, columns, grain(rows), [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> sums(static_cast<std::size_t>(end - begin));
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* const row = x + i * columns + begin;
      const double factor{v[i]};
      for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += factor * double{row[c]};
    }
    std::ranges::transform(sums, to + begin, [](double sum) { return static_cast<float>(sum); });
  });
}

// X <- X + a b^T
void add_outer(const at::Tensor& matrix, const float* a, const float* b) {
  const std::int64_t columns = matrix.size(1);
  auto* const x = matrix.mutable_data_ptr<float>();
  at::parallel_for(0, matrix.size(0), grain(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* const row = x + i * columns;
      for (std::int64_t c = 0; c < columns; ++c) row[c] += a[i] * b[c];
    }
  });
}

// v <- v / |v|. Returns false, and changes nothing, if it has no direction.
bool normalise(std::span<float> v) {
  const double norm = std::sqrt(dot(v.data(), v.data(), static_cast<std::int64_t>(v.size())));
  if (!(norm > 0) || !std::isfinite(norm)) return false;
  for (float& value : v) value = static_cast<float>(double{value} / norm);
  return true;
}

const float* floats_of(const SentBlock& sent) { return reinterpret_cast<const float*>(sent.bytes().data()); }

SentBlock as_sent(const at::Tensor& values) {
  const std::span<const float> all(values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel()));
  return {{nullptr, std::as_bytes(all)}, Wire::fp32};
}

// The place of a neighbour among those of worker `of`.
std::size_t place(const Graph& graph, int of, int neighbour) {
  const auto& all = graph.neighbours[static_cast<std::size_t>(of)];
  return static_cast<std::size_t>(std::ranges::find(all, neighbour, &Neighbour::rank) - all.begin());
}

// ---------------------------------------------------------------- the scheme

class PowerGossip final : public Scheme {
 public:
  explicit PowerGossip(const SchemeParts& parts) : Scheme(parts) {}

  bool sends_ahead() const override { return true; }

  void attach(const Connection& connection) override;
  void begin() override {
    for (Block& block : blocks_) send(block);
  }
  void restart() override;
  void step() override;
  void state(StateVisitor& visitor) override;

 private:
  // An edge, for one block: v of each matrix, in the place of the last turn's product.
  struct Edge {
    std::vector<float> v;
    int turn = 0;

    std::array<float, kChecksum> checksum() const {
      const std::uint32_t sum = crc32c(std::as_bytes(std::span(v)), static_cast<std::uint32_t>(turn));
      return {static_cast<float>(sum >> 16), static_cast<float>(sum & 0xffffU)};
    }
  };

  const Form& form(const Block& block) const { return forms_[static_cast<std::size_t>(block.index)]; }
  Edge& edge(int neighbour, const Block& block) {
    return edges_.at(neighbour)[static_cast<std::size_t>(block.index)];
  }
  const Graph& graph(std::uint64_t round) const { return schedule_.at(static_cast<long long>(round - 1)); }

  Edge fresh(int neighbour, const Block& block) const;
  void set_random(std::span<float> v, int neighbour, const Block& block, const Matrix& m, int turn) const;
  void send(Block& block);
  bool write(Block& block, std::span<float> to);
  std::vector<Arrival> arrived(const Block& block);
  void take(const Block& block, const Arrival& swap);
  void take_matrices(const Block& block, const Arrival& swap, std::span<const float> mine,
                     std::span<const float> theirs);
  void move(const Block& block, const Matrix& m, std::span<const float> a, std::span<const float> b);

  Schedule schedule_;
  std::size_t slots_ = 0;                   // of a wire block
  std::vector<Form> forms_;                 // by block
  std::map<int, std::vector<Edge>> edges_;  // by neighbour and block
  at::Tensor x_, moves_;                    // on the host, as long as the longest block
  Zeros zeros_;
};

void PowerGossip::attach(const Connection& connection) {
  Scheme::attach(connection);
  schedule_ = connection.schedule;
  slots_ = most_neighbours(schedule_);
  std::set<int> neighbours;
  for (const Graph& round : schedule_.rounds) {
    for (const Neighbour& j : round.neighbours[static_cast<std::size_t>(world_.rank)])
      neighbours.insert(j.rank);
  }
  const Block& longest = *std::ranges::max_element(blocks_, {}, &Block::length);
  for (std::size_t b = forms_.size(); b < blocks_.size(); ++b) forms_.push_back(form_of(blocks_[b]));
  x_ = room_on_host(longest);
  moves_ = room_on_host(longest);
  zeros_.attach(blocks_);
  std::erase_if(edges_, [&](const auto& entry) { return !neighbours.contains(entry.first); });
  for (const int j : neighbours) {
    std::vector<Edge>& edges = edges_[j];
    for (std::size_t b = edges.size(); b < blocks_.size(); ++b) edges.push_back(fresh(j, blocks_[b]));
  }
}

void PowerGossip::restart() {
  for (auto& [neighbour, edges] : edges_) {
    for (const Block& block : blocks_) edge(neighbour, block) = fresh(neighbour, block);
  }
}

void PowerGossip::step() {
  if (!local_.is_fused()) {
    for (Block& block : blocks_) mix(block, arrived(block), {});
    local_.all();
    for (Block& block : blocks_) send(block);
    return;
  }
  const auto scale = local_.scale();
  for (Block& block : blocks_) {
    update(block, local_.rule(block), arrived(block), {}, scale);
    send(block);
  }
}

// ---------------------------------------------------------------- what an edge keeps

// The same at both ends.
PowerGossip::Edge PowerGossip::fresh(int neighbour, const Block& block) const {
  Edge edge{.v = std::vector<float>(form(block).products)};
  for (const Matrix& m : form(block).matrices)
    set_random(m.product(std::span(edge.v), 1), neighbour, block, m, 1);
  return edge;
}

void PowerGossip::set_random(std::span<float> v, int neighbour, const Block& block, const Matrix& m,
                             int turn) const {
  const auto [low, high] = std::minmax(world_.rank, neighbour);
  const std::uint64_t key =
      random_bits({kSeed, static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high),
                   static_cast<std::uint64_t>(block.index), m.segment, static_cast<std::uint64_t>(turn)});
  for (std::size_t c = 0; c < v.size(); ++c)
    v[c] = static_cast<float>(2 * uniform_of(random_bits({key, c})) - 1);
  normalise(v);
}

// For each neighbour and each block with matrices: the turn, then v.
void PowerGossip::state(StateVisitor& visitor) {
  const auto each = [this](const auto& f) {
    for (auto& [neighbour, edges] : edges_) {
      for (const Block& block : blocks_) {
        if (!form(block).matrices.empty()) f(neighbour, block);
      }
    }
  };
  StateVisitor::Numbers numbers;
  const auto add = [](std::vector<double>& to, const Edge& edge) {
    to.push_back(edge.turn);
    to.insert(to.end(), edge.v.begin(), edge.v.end());
  };
  each([&](int neighbour, const Block& block) {
    add(numbers.fresh, fresh(neighbour, block));
    add(numbers.now, edge(neighbour, block));
  });
  if (numbers.now.empty()) return;
  numbers.set = [this, each](std::span<const double> given) {
    each([&](int neighbour, const Block& block) {
      Edge& here = edge(neighbour, block);
      here.turn = static_cast<int>(given[0]);
      std::ranges::transform(given.subspan(1, here.v.size()), here.v.begin(),
                             [](double value) { return static_cast<float>(value); });
      given = given.subspan(1 + here.v.size());
    });
  };
  numbers.refusal = [this, each](std::span<const double> given) {
    bool good = std::ranges::all_of(given, [](double value) { return std::abs(value) <= 1; });
    each([&](int, const Block& block) {
      good = good && (given[0] == 0 || given[0] == 1);
      given = given.subspan(1 + form(block).products);
    });
    return std::string(good ? "" : "wants turns of 0 or 1, each with vectors of length 1");
  };
  visitor.numbers("directions", numbers);
}

// ---------------------------------------------------------------- out

void PowerGossip::send(Block& block) {
  const Outgoing outgoing = exchange().outgoing(block.index);
  bool finite = true;
  if (outgoing.values != nullptr) {
    const std::size_t size = form(block).size(slots_);
    finite = write(block, {static_cast<float*>(outgoing.values), size});
  }
  start(exchange(), block, finite);
}

// Returns whether all that is sent is finite. Products of a matrix that is not are not either.
bool PowerGossip::write(Block& block, std::span<float> to) {
  const Form& form = this->form(block);
  std::ranges::fill(to, 0.0F);  // products and slots may be left over
  read_parameters(block, x_.narrow(0, 0, block.length));
  const auto* const x = x_.const_data_ptr<float>();
  auto next = to.begin();
  for (const std::size_t k : form.others)
    next = std::copy_n(x + block.segments[k].offset, block.segments[k].length, next);

  const auto& neighbours = graph(exchange().round()).neighbours[static_cast<std::size_t>(world_.rank)];
  const auto slot = [&](std::size_t p) { return to.subspan(form.values + p * form.slot(), form.slot()); };
  for (std::size_t p = 0; p < neighbours.size() && !form.matrices.empty(); ++p)
    std::ranges::copy(edge(neighbours[p].rank, block).checksum(), slot(p).begin());
  for (const Matrix& m : form.matrices) {
    const Segment& s = block.segments[m.segment];
    const at::Tensor matrix = matrix_of(x_.narrow(0, s.offset, s.length), m, s.parameter);
    for (std::size_t p = 0; p < neighbours.size(); ++p) {
      const Edge& edge = this->edge(neighbours[p].rank, block);
      const float* const v = m.product(std::span(edge.v), 1 - edge.turn).data();
      float* const product = m.product(slot(p).subspan(kChecksum), edge.turn).data();
      m.is_of_rows(edge.turn) ? multiply(matrix, v, product) : multiply_transposed(matrix, v, product);
    }
  }
  return kernels::all_finite(std::as_bytes(to), Wire::fp32);
}

// ---------------------------------------------------------------- in

// Takes the block's swaps. Returns their sum as an arrival, valid until the next call.
std::vector<Arrival> PowerGossip::arrived(const Block& block) {
  const auto finished = finish(exchange(), block);
  if (finished.empty()) return {};
  std::vector<Arrival> swaps(finished.begin(), finished.end());
  std::ranges::stable_sort(swaps, {}, &Arrival::round);  // a mended swap is older than this round's
  const at::Tensor moves = moves_.narrow(0, 0, block.length).zero_();
  for (const Arrival& swap : swaps) take(block, swap);
  return {{.weight = 1, .theirs = as_sent(moves), .mine = zeros_.of(block)}};
}

void PowerGossip::take(const Block& block, const Arrival& swap) {
  if (swap.theirs.bytes().empty()) return;  // allowed by the exchange, but nobody sends it
  const Form& form = this->form(block);
  const float *theirs = floats_of(swap.theirs), *mine = floats_of(swap.mine);
  for (const std::size_t k : form.others) {
    const Segment& s = block.segments[k];
    float* const moves = moves_.mutable_data_ptr<float>() + s.offset;
    for (std::int64_t c = 0; c < s.length; ++c) moves[c] += swap.weight * (theirs[c] - mine[c]);
    theirs += s.length, mine += s.length;
  }
  if (form.matrices.empty()) return;
  const Graph& round = graph(swap.round);
  const auto slot = [&](const float* slots, int of, int neighbour) {
    return std::span(slots + place(round, of, neighbour) * form.slot(), form.slot());
  };
  take_matrices(block, swap, slot(mine, world_.rank, swap.rank), slot(theirs, swap.rank, world_.rank));
}

void PowerGossip::take_matrices(const Block& block, const Arrival& swap, std::span<const float> mine,
                                std::span<const float> theirs) {
  Edge& edge = this->edge(swap.rank, block);
  const auto is_of_v = [sum = edge.checksum()](std::span<const float> slot) {
    return std::ranges::equal(slot.first(kChecksum), sum);
  };
  if (!is_of_v(mine) || !is_of_v(theirs)) {
    edge = fresh(swap.rank, block);
    return;
  }
  // The lower rank's products less those of the higher one: the same bits at both ends.
  const bool low = world_.rank < swap.rank;
  const float weight = low ? -swap.weight : swap.weight;
  std::vector<float> next(form(block).products), moved(next.size());
  std::ranges::transform((low ? mine : theirs).subspan(kChecksum), (low ? theirs : mine).subspan(kChecksum),
                         next.begin(), std::minus());
  std::ranges::transform(next, moved.begin(), [&](float value) { return weight * value; });
  const std::span<const float> all_v(edge.v), all_moved(moved);
  for (const Matrix& m : form(block).matrices) {
    const auto v = m.product(all_v, 1 - edge.turn), product = m.product(all_moved, edge.turn);
    m.is_of_rows(edge.turn) ? move(block, m, product, v) : move(block, m, v, product);
    const auto next_v = m.product(std::span(next), edge.turn);
    if (!normalise(next_v)) set_random(next_v, swap.rank, block, m, edge.turn);
  }
  edge = {std::move(next), 1 - edge.turn};
}

// Adds a b^T to what the matrix moves by.
void PowerGossip::move(const Block& block, const Matrix& m, std::span<const float> a,
                       std::span<const float> b) {
  const Segment& s = block.segments[m.segment];
  const at::Tensor moves = moves_.narrow(0, s.offset, s.length);
  const at::Tensor matrix = matrix_of(moves, m, s.parameter);
  add_outer(matrix, a.data(), b.data());
  if (matrix.is_alias_of(moves)) return;
  moves.as_strided(s.parameter.sizes(), s.parameter.strides()).copy_(matrix.view(s.parameter.sizes()));
}

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
               .local_steps = true},
    .advice = {.good_for = "links a hundred times too slow, and models of large matrices",
               .topology = "base-2"},
    .make = make<PowerGossip>,
    .check = check_symmetric,
};

}  // namespace starling
