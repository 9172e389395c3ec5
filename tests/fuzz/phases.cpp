// A worker's file of phases, as another process reads it.
#include "starling/core/phases.h"

#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("starling-fuzz-" + std::to_string(getpid()));
  fs::create_directory(folder);
  std::ofstream(folder / "worker-0", std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const auto worker = read_phases(folder, 0);
  fs::remove_all(folder);
  if (!worker) return;
  check(worker->owner.rank == 0 && worker->owner.workers > 0, "another worker's file");
  check(worker->text() == printable(worker->text()), "not one line");
}

}  // namespace starling::fuzz
