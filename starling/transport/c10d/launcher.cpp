#include "starling/transport/c10d/launcher.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <fmt/format.h>

#include "starling/transport/c10d/private_folder.h"
#include "starling/transport/c10d/store.h"
#include "starling/world/environment.h"
#include "starling/world/world.h"

namespace starling {

std::string store_prefix(const std::string& run) { return "starling/" + run; }
std::string fate_key(int rank) { return fmt::format("fate/{}", rank); }

struct MeetingPoint::Place {
  PrivateFolder folder;
  std::string file = folder.path() / "store";
  C10dStore workers{c10::make_intrusive<c10d::PrefixStore>(store_prefix("0"), file_store(file))};
};

MeetingPoint::MeetingPoint() : place_(std::make_unique<Place>()) {
  place_->workers.set("made", "");  // the file exists before a worker looks for it
}

MeetingPoint::~MeetingPoint() = default;

std::pair<std::string, std::string> MeetingPoint::variable() const { return {kStoreFile, place_->file}; }

void MeetingPoint::ended(int rank, const std::string& how) const {
  try {
    place_->workers.set(fate_key(rank), how);
  } catch (const StoreLost&) {
    // The workers have lost it too, and find out by themselves.
  }
}

}  // namespace starling
