#include "starling/optim/hierarchical.h"

#include <ATen/ops/full.h>

#include "starling/optim/schemes/vectors.h"

namespace starling {

void Hierarchical::attach(const Connection& connection) {
  Scheme::attach(connection);
  inside_ = connection.inside_node;
  own_.clear();
  gathered_.clear();
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    if (node_.owner[b] == node_.place) own_.push_back(&blocks_[b]);
    gathered_.push_back(room_on_host(blocks_[b]));
  }
  gradients_.emplace(options_.scheme.name, blocks_, *inside_, node_.size,
                     Owners{.me = node_.place, .of_block = node_.owner});
}

void Hierarchical::detach() {
  gradients_.reset();
  Scheme::detach();
}

void Hierarchical::begin() {
  for (Block* block : own_) send_again(exchange(), *block);
}

void Hierarchical::step() {
  gradients_->step([this] { adapt(); });
}

ExchangeStatistics Hierarchical::counted() const {
  ExchangeStatistics all;
  if (gradients_) all.seconds_waiting = gradients_->seconds_waiting();
  return all;
}

void Hierarchical::adapt() {
  const auto scale = local_.scale([&] { return sum_of_squares_of_node(); });
  for (Block* block : own_)
    update_and_send(exchange(), *block, local_.rule(*block), finish(exchange(), *block), scale);
  gather();
}

double Hierarchical::sum_of_squares_of_node() {
  double mine = 0;
  for (const Block* block : own_) mine += sum_of_squares({block, 1});
  const at::Tensor sum = at::full({1}, mine, at::kDouble);
  inside_->all_reduce_sum(sum).wait();
  return sum.item<double>();
}

void Hierarchical::gather() {
  const auto moved = [this](std::size_t b) {
    std::vector<Moved> all;
    for (const Segment& s : blocks_[b].segments)
      all.push_back(
          {stretch(s.parameter.detach(), s.begin, s.length), gathered_[b].narrow(0, s.offset, s.length)});
    return all;
  };
  std::vector<Collectives::Pending> pending;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    if (node_.owner[b] == node_.place) copy_to_host(blocks_[b], moved(b));
    pending.push_back(inside_->broadcast(gathered_[b], node_.owner[b]));
  }
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    pending[b].wait();
    if (node_.owner[b] != node_.place) copy_from_host(blocks_[b], moved(b));
  }
}

}  // namespace starling
