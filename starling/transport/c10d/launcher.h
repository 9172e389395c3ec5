// The meeting place of the workers of `starling train --workers N`: a store in a folder that only
// their user can reach, so no other user of the host can disturb them.
#pragma once

#include <memory>
#include <string>
#include <utility>

namespace starling {

// The key of a worker's World::fate.
std::string fate_key(int rank);

// The folder is there as long as this object lives.
class MeetingPoint {
 public:
  MeetingPoint();  // throws Error
  ~MeetingPoint();

  // The variable that the workers find it by, and its value.
  std::pair<std::string, std::string> variable() const;
  // Tells the workers, which may be waiting for this one, how it has ended.
  void ended(int rank, const std::string& how) const;

 private:
  struct Place;
  std::unique_ptr<Place> place_;
};

}  // namespace starling
