#include "starling/transport/mapped/arena.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "starling/core/signals.h"

namespace starling::mapped {
namespace {

std::size_t whole_pages(std::size_t size) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (size + page - 1) / page * page;
}

// If a file grows beyond this limit, the process is killed instead of getting an error.
bool may_be_so_large(std::size_t size) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && size <= limit.rlim_cur;
}

// A signal would interrupt it, and undo what it has done so far. Returns 0, or the error's number.
int allocate(int memory, std::size_t from, std::size_t size) {
  const SignalsBlocked blocked;
  while (fallocate(memory, 0, static_cast<off_t>(from), static_cast<off_t>(size)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

struct Arena::Region {
  Region(Descriptor memory, std::span<std::byte> bytes) : memory(std::move(memory)), bytes(bytes) {}
  ~Region() { munmap(bytes.data(), bytes.size()); }
  Region(const Region&) = delete;

  const Descriptor memory;
  const std::span<std::byte> bytes;
  std::size_t used = 0;
};

void Arena::add() {
  const std::lock_guard lock(mutex_);
  add_region(whole_pages(region_bytes_));
}

std::shared_ptr<Arena::Region> Arena::add_region(std::size_t size) {
  if (!may_be_so_large(size)) {
    trouble_ = fmt::format("files may not be as large as {} bytes here (ulimit -f)", size);
    return nullptr;
  }
  const auto failed = [&](const char* what) {
    trouble_ = fmt::format("{}: {}", what, std::strerror(errno));
    return nullptr;
  };
  Descriptor memory(memfd_create("starling", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0) return failed("memfd_create");
  if (ftruncate(memory.get(), static_cast<off_t>(size)) != 0) return failed("ftruncate");
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) return failed("mmap");
  auto region = std::make_shared<Region>(std::move(memory), std::span(static_cast<std::byte*>(at), size));
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  const int fd = region->memory.get();
  // Before Linux 5.1 there is no F_SEAL_FUTURE_WRITE. Neighbours of the same user are then trusted
  // not to write.
  if (fcntl(fd, F_ADD_SEALS, kSize | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0 &&
      fcntl(fd, F_ADD_SEALS, kSize | F_SEAL_SEAL) != 0) {
    return failed("F_ADD_SEALS");
  }
  return regions_.emplace_back(std::move(region));
}

std::unique_ptr<Buffer> Arena::make(std::size_t size) {
  const std::size_t pages = whole_pages(size);
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Region> region = regions_.empty() ? nullptr : regions_.back();
  if (!region || pages > region->bytes.size() - region->used)
    region = add_region(std::max(pages, whole_pages(region_bytes_)));
  if (!region) return nullptr;
  // Allocates now: without free memory this call fails, but the first write would kill the process.
  if (const int failed = allocate(region->memory.get(), region->used, pages); failed != 0) {
    trouble_ = fmt::format("{} bytes: {}", pages, std::strerror(failed));
    return nullptr;
  }
  const std::span<std::byte> bytes = region->bytes.subspan(region->used, size);
  region->used += pages;
  return std::make_unique<Buffer>(std::move(region), bytes);
}

std::optional<Arena::Place> Arena::find(std::span<const std::byte> bytes) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t k = 0; k < regions_.size(); ++k) {
    const auto& region = regions_[k]->bytes;
    const auto from = reinterpret_cast<std::uintptr_t>(region.data());
    const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
    if (from <= at && at - from <= region.size() && bytes.size() <= region.size() - (at - from))
      return Place{static_cast<std::uint32_t>(k), at - from};
  }
  return std::nullopt;
}

int Arena::descriptor(std::size_t region) const {
  const std::lock_guard lock(mutex_);
  return regions_.at(region)->memory.get();
}

std::shared_ptr<const Mapping> Mapping::of(Descriptor memory, std::string& why) {
  const auto refuse = [&](std::string reason) {
    why = std::move(reason);
    return nullptr;
  };
  const int fd = memory.get();
  struct statfs system{};
  struct stat status{};
  // Reading memory of huge pages may kill the reader even if the memory cannot shrink.
  if (fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC) return refuse("it is not a memfd");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return refuse("it could shrink");
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0)
    return refuse("it has no size");
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const at = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return refuse(fmt::format("mmap: {}", std::strerror(errno)));
  return std::shared_ptr<const Mapping>(new Mapping({static_cast<const std::byte*>(at), size}));
}

Mapping::~Mapping() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace starling::mapped
