// The competitor of exchanges: torch's process group of Gloo, over the workers of a world.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "starling/transport/c10d/store.h"
#include "starling/world/world.h"

namespace bench {

using at::Tensor;

// The time of one worker, or of all.
struct Lap {
  double seconds, cpu;
};

class Gloo {
 public:
  explicit Gloo(const starling::World& world) : rank_(world.rank), size_(world.size) {
    const auto store = dynamic_cast<starling::C10dStore&>(*world.store).clone("gloo");
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(120));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(world.address));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank_, size_, options);
  }
  void send(Tensor t, int to, int tag, c10::intrusive_ptr<c10d::Work>& work) {
    std::vector<Tensor> tensors{std::move(t)};
    work = group_->send(tensors, to, tag);
  }
  void receive(Tensor t, int from, int tag, c10::intrusive_ptr<c10d::Work>& work) {
    std::vector<Tensor> tensors{std::move(t)};
    work = group_->recv(tensors, from, tag);
  }
  void sum(Tensor t) {
    std::vector<Tensor> tensors{std::move(t)};
    group_->allreduce(tensors)->wait();
  }
  void barrier() { group_->barrier()->wait(); }
  // Over all workers: the largest time, the sum of CPU times.
  Lap of_all(Lap mine) {
    std::vector<Tensor> time{at::full({1}, mine.seconds, at::kDouble)},
        cpu{at::full({1}, mine.cpu, at::kDouble)};
    c10d::AllreduceOptions maximum;
    maximum.reduceOp = c10d::ReduceOp::MAX;
    group_->allreduce(time, maximum)->wait();
    group_->allreduce(cpu)->wait();
    return {time[0].item<double>(), cpu[0].item<double>()};
  }

 private:
  int rank_, size_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace bench
