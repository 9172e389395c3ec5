// A worker's file of phases, as another process reads it.
#include "starling/core/phases.h"

#include "tests/folder.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  const Folder folder;
  spill(folder / "worker-0", std::string(bytes));
  const auto worker = read_phases(folder.path, 0);
  if (!worker) return;
  check(worker->owner.rank == 0 && worker->owner.workers > 0, "another worker's file");
  check(worker->text() == printable(worker->text()), "not one line");
}

}  // namespace starling::fuzz
