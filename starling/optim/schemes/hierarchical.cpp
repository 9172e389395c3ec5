#include "starling/optim/schemes/hierarchical.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "starling/optim/schemes/cta.h"

namespace starling {

Hierarchical::Hierarchical(std::vector<Block>& blocks, const Node& node, Collectives& inside,
                           Exchange& between, RuleOf rule, Clipping& clipping)
    : blocks_(blocks),
      node_(node),
      inside_(inside),
      between_(between),
      rule_(std::move(rule)),
      clipping_(clipping),
      gradients_(blocks, inside, node.size, [this] { adapt(); }, {.me = node.place, .of_block = node.owner}) {
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (node.owner[b] == node.place) own_.push_back(&blocks[b]);
    gathered_.push_back(at::empty({blocks[b].length}, at::kFloat));
  }
}

void Hierarchical::begin() {
  for (Block* block : own_) send_again(between_, *block);
}

void Hierarchical::step() { gradients_.step(); }

void Hierarchical::adapt() {
  const auto scale = clipping_.scale([&] { return sum_of_squares_of_node(); });
  for (Block* block : own_) combine_then_adapt(*block, between_, rule_, scale);
  gather();
}

double Hierarchical::sum_of_squares_of_node() {
  double mine = 0;
  for (const Block* block : own_) mine += sum_of_squares({block, 1});
  const at::Tensor sum = at::full({1}, mine, at::kDouble);
  inside_.all_reduce_sum(sum).wait();
  return sum.item<double>();
}

void Hierarchical::gather() {
  // A segment's values in the parameter's memory order.
  const auto values = [](const Segment& s) {
    return s.parameter.detach().as_strided({s.parameter.numel()}, {1}).narrow(0, s.begin, s.length);
  };
  std::vector<Collectives::Pending> pending;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    if (node_.owner[b] == node_.place) {
      for (const Segment& s : blocks_[b].segments)
        gathered_[b].narrow(0, s.offset, s.length).copy_(values(s));
    }
    pending.push_back(inside_.start_broadcast(gathered_[b], node_.owner[b]));
  }
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    pending[b].wait();
    if (node_.owner[b] == node_.place) continue;
    for (const Segment& s : blocks_[b].segments) values(s).copy_(gathered_[b].narrow(0, s.offset, s.length));
  }
}

}  // namespace starling
