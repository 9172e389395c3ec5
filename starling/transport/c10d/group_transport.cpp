#include "starling/transport/c10d/group_transport.h"

#include <chrono>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "starling/transport/c10d/hand_to_gloo.h"
#include "starling/transport/c10d/pieces.h"

namespace starling {
namespace {

// Longer than anybody waits: a wait that ran out would close all connections of a Gloo group. What ends a wait before the
// operation has ended is call_back(), and the end of the peer's process.
constexpr auto kForever = std::chrono::hours(24 * 365);

class GroupPassage final : public Carrier::Passage {
 public:
  explicit GroupPassage(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  void wait() override { work_->wait(kForever); }
  void call_back() override { work_->abort(); }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
};

class Group final : public Carrier {
 public:
  explicit Group(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}
  std::string name() const override {
    return fmt::format("the process group ({})", backend_->getBackendName());
  }
  Sent send(int peer, int tag, std::span<const std::byte> from) override {
    return {hand_over({const_cast<std::byte*>(from.data()), from.size()},
                      [&](std::vector<at::Tensor>& piece) { return backend_->send(piece, peer, tag); })};
  }
  std::shared_ptr<Passage> receive(int peer, int tag, std::span<std::byte> to,
                                   std::span<const std::byte>) override {
    return hand_over(to, [&](std::vector<at::Tensor>& piece) { return backend_->recv(piece, peer, tag); });
  }

 private:
  template <class Begin>
  static std::shared_ptr<Passage> hand_over(std::span<std::byte> bytes, const Begin& begin) {
    std::vector<at::Tensor> piece{
        at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte)};
    const WithoutSigpipe errors_only;
    const std::lock_guard lock(flight_recorder());
    return std::make_shared<GroupPassage>(begin(piece));
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace

std::function<std::unique_ptr<Transport>(const World&, const std::string& channel)> group_transports(
    c10d::Backend& backend, std::int64_t call) {
  return [group = std::make_shared<Group>(
              c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(&backend)),
          tags = std::make_shared<Tags>(call)](const World& world, const std::string& channel) {
    return make_piece_transport(group, tags, world, channel);
  };
}

}  // namespace starling
