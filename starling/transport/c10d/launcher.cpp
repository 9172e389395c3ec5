#include "starling/transport/c10d/launcher.h"

#include <fmt/format.h>

#include "starling/transport/c10d/private_folder.h"
#include "starling/world/environment.h"
#include "starling/world/folder_store.h"

namespace starling {

std::string fate_key(int rank) { return fmt::format("fate/{}", rank); }

struct MeetingPoint::Place {
  PrivateFolder folder;
  FolderStore workers{folder.path()};
};

MeetingPoint::MeetingPoint() : place_(std::make_unique<Place>()) {}
MeetingPoint::~MeetingPoint() = default;

std::pair<std::string, std::string> MeetingPoint::variable() const {
  return {kStoreFolder, place_->workers.folder()};
}

void MeetingPoint::ended(int rank, const std::string& how) const {
  try {
    place_->workers.set(fate_key(rank), how);
  } catch (const StoreLost&) {
    // The workers have lost it too, and find out by themselves.
  }
}

}  // namespace starling
