#include "starling/optim/schemes/product_exchange.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "starling/kernels/update.h"
#include "starling/optim/schemes/matrix_products.h"

namespace starling {
namespace {

constexpr std::size_t kChecksum = ProductForm::kChecksum;

std::size_t number_of(const Block& block) { return static_cast<std::size_t>(block.index); }

const float* values_of(const SentBlock& sent) { return reinterpret_cast<const float*>(sent.bytes().data()); }

SentBlock sent_values(const at::Tensor& values) {
  const std::span<const float> all(values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel()));
  return {{nullptr, std::as_bytes(all)}, Wire::fp32};
}

// The place of a neighbour among those of worker `of`.
std::size_t place_among(const Graph& graph, int of, int neighbour) {
  const auto& all = graph.neighbours[static_cast<std::size_t>(of)];
  return static_cast<std::size_t>(std::ranges::find(all, neighbour, &Neighbour::rank) - all.begin());
}

}  // namespace

void ProductExchange::attach(const Connection& connection, std::span<const Block> blocks) {
  exchange_ = connection.exchange;
  schedule_ = connection.schedule;
  slots_ = slots_of(schedule_);
  std::set<int> neighbours;
  for (const Graph& round : schedule_.rounds) {
    for (const Neighbour& j : round.neighbours[static_cast<std::size_t>(rank_)]) neighbours.insert(j.rank);
  }
  const Block& longest = *std::ranges::max_element(blocks, {}, &Block::length);
  for (std::size_t b = forms_.size(); b < blocks.size(); ++b) forms_.emplace_back(blocks[b]);
  x_ = room_on_host(longest);
  moves_ = room_on_host(longest);
  zeros_.attach(blocks);
  vectors_.attach(neighbours);
}

// ---------------------------------------------------------------- out

void ProductExchange::send(Block& block) {
  const Outgoing outgoing = exchange_->outgoing(block.index);
  bool finite = true;
  if (outgoing.values != nullptr) {
    const std::size_t size = forms_[number_of(block)].size(slots_);
    finite = write(block, {static_cast<float*>(outgoing.values), size});
  }
  start(*exchange_, block, finite);
}

// Returns whether all that is sent is finite. Products of a matrix that is not are not either.
bool ProductExchange::write(Block& block, std::span<float> to) {
  const ProductForm& form = forms_[number_of(block)];
  std::ranges::fill(to, 0.0F);  // products and slots may be left over
  read_on_host(block, x_.narrow(0, 0, block.length));
  const auto* const x = x_.const_data_ptr<float>();
  auto next = to.begin();
  for (const std::size_t k : form.others)
    next = std::copy_n(x + block.segments[k].offset, block.segments[k].length, next);

  const auto& neighbours = graph(exchange_->round()).neighbours[static_cast<std::size_t>(rank_)];
  const auto slot = [&](std::size_t p) { return to.subspan(form.values + p * form.slot(), form.slot()); };
  for (std::size_t p = 0; p < neighbours.size() && !form.matrices.empty(); ++p)
    std::ranges::copy(vectors_.of(neighbours[p].rank, number_of(block)).checksum(), slot(p).begin());
  for (const ProductForm::Matrix& m : form.matrices) {
    const Segment& s = block.segments[m.segment];
    const at::Tensor matrix = m.of(x_.narrow(0, s.offset, s.length), s.parameter);
    for (std::size_t p = 0; p < neighbours.size(); ++p) {
      const EdgeVectors::Edge& edge = vectors_.of(neighbours[p].rank, number_of(block));
      const float* const v = m.product(std::span(edge.v), 1 - edge.turn).data();
      float* const product = m.product(slot(p).subspan(kChecksum), edge.turn).data();
      m.is_of_rows(edge.turn) ? multiply(matrix, v, product) : multiply_transposed(matrix, v, product);
    }
  }
  return kernels::all_finite(std::as_bytes(to), Wire::fp32);
}

// ---------------------------------------------------------------- in

std::vector<Arrival> ProductExchange::arrived(const Block& block) {
  const auto finished = finish(*exchange_, block);
  if (finished.empty()) return {};
  std::vector<Arrival> swaps(finished.begin(), finished.end());
  std::ranges::stable_sort(swaps, {}, &Arrival::round);  // a mended swap is older than this round's
  const at::Tensor moves = moves_.narrow(0, 0, block.length).zero_();
  for (const Arrival& swap : swaps) take(block, swap);
  return {{.weight = 1, .theirs = sent_values(moves), .mine = zeros_.of(block)}};
}

void ProductExchange::take(const Block& block, const Arrival& swap) {
  const ProductForm& form = forms_[number_of(block)];
  const float *theirs = values_of(swap.theirs), *mine = values_of(swap.mine);
  for (const std::size_t k : form.others) {
    const Segment& s = block.segments[k];
    float* const moves = moves_.mutable_data_ptr<float>() + s.offset;
    for (std::int64_t c = 0; c < s.length; ++c) moves[c] += swap.weight * (theirs[c] - mine[c]);
    theirs += s.length, mine += s.length;
  }
  if (form.matrices.empty()) return;
  const Graph& round = graph(swap.round);
  const auto slot = [&](const float* slots, int of, int neighbour) {
    return std::span(slots + place_among(round, of, neighbour) * form.slot(), form.slot());
  };
  take_matrices(block, swap, slot(mine, rank_, swap.rank), slot(theirs, swap.rank, rank_));
}

void ProductExchange::take_matrices(const Block& block, const Arrival& swap, std::span<const float> mine,
                                    std::span<const float> theirs) {
  const ProductForm& form = forms_[number_of(block)];
  EdgeVectors::Edge& edge = vectors_.of(swap.rank, number_of(block));
  const auto is_of_v = [sum = edge.checksum()](std::span<const float> slot) {
    return std::ranges::equal(slot.first(kChecksum), sum);
  };
  if (!is_of_v(mine) || !is_of_v(theirs)) {
    vectors_.renew(swap.rank, number_of(block));
    return;
  }
  // The lower rank's products less those of the higher one: the same bits at both ends.
  const bool low = rank_ < swap.rank;
  const float weight = low ? -swap.weight : swap.weight;
  std::vector<float> next(form.products), moved(next.size());
  std::ranges::transform((low ? mine : theirs).subspan(kChecksum), (low ? theirs : mine).subspan(kChecksum),
                         next.begin(), std::minus());
  std::ranges::transform(next, moved.begin(), [&](float value) { return weight * value; });
  const std::span<const float> all_v(edge.v), all_moved(moved);
  for (const ProductForm::Matrix& m : form.matrices) {
    const auto v = m.product(all_v, 1 - edge.turn), product = m.product(all_moved, edge.turn);
    m.is_of_rows(edge.turn) ? move(block, m, product, v) : move(block, m, v, product);
    const auto next_v = m.product(std::span(next), edge.turn);
    vectors_.normalise(next_v, swap.rank, number_of(block), m, edge.turn);
  }
  edge = {std::move(next), 1 - edge.turn};
}

// Adds a b^T to what the matrix moves by.
void ProductExchange::move(const Block& block, const ProductForm::Matrix& m, std::span<const float> a,
                           std::span<const float> b) {
  const Segment& s = block.segments[m.segment];
  const at::Tensor moves = moves_.narrow(0, s.offset, s.length);
  const at::Tensor matrix = m.of(moves, s.parameter);
  add_outer(matrix, a.data(), b.data());
  if (matrix.is_alias_of(moves)) return;
  moves.as_strided(s.parameter.sizes(), s.parameter.strides()).copy_(matrix.view(s.parameter.sizes()));
}

}  // namespace starling
