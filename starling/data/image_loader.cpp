#include "starling/data/image_loader.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/data/jpeg.h"

namespace starling {

struct ImageLoader::Job {
  Job(std::shared_ptr<const ImageShards> from, std::vector<std::int64_t> wanted, int side, ChooseView choose,
      bool pinned)
      : shards(std::move(from)),
        images(std::move(wanted)),
        size(side),
        view(std::move(choose)),
        pixels(at::empty({std::ssize(images), side, side, 3},
                         at::TensorOptions(at::kByte).pinned_memory(pinned))),
        row(pixels.numel() / std::max<std::int64_t>(1, std::ssize(images))),
        broken(images.size()) {}

  std::uint8_t* pixels_of(std::size_t i) const {
    return pixels.data_ptr<std::uint8_t>() + static_cast<std::int64_t>(i) * row;
  }
  void decode(std::size_t i, JpegDecoder& decoder) {
    try {
      const ImageSize whole = decoder.open(shards->jpeg(images[i]));
      decoder.decode(view(images[i], whole), size, pixels_of(i));
    } catch (const Error& error) {
      broken[i] = fmt::format("{}: {}", shards->name(images[i]), error.what());
    }
  }
  // Hands over the whole images, or what went wrong.
  void finish() {
    try {
      if (failure) std::rethrow_exception(failure);
      done.set_value(result());
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  }
  // Moves the whole images together.
  DecodedImages result() {
    DecodedImages out;
    out.labels = at::empty({std::ssize(images)}, at::kLong);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
      if (!broken[i].empty()) {
        out.skipped.push_back(broken[i]);
        continue;
      }
      if (kept < i) std::copy_n(pixels_of(i), row, pixels_of(kept));
      out.labels.data_ptr<std::int64_t>()[kept++] = shards->label(images[i]);
    }
    const auto rows = static_cast<std::int64_t>(kept);
    out.images = pixels.narrow(0, 0, rows).permute({0, 3, 1, 2});
    out.labels = out.labels.narrow(0, 0, rows);
    return out;
  }

  const std::shared_ptr<const ImageShards> shards;
  const std::vector<std::int64_t> images;
  const int size;
  const ChooseView view;
  const at::Tensor pixels;          // uint8 [n, size, size, 3]
  const std::int64_t row;           // bytes of an image
  std::vector<std::string> broken;  // for each image; empty: it is whole
  // Guarded by the loader's mutex:
  std::size_t taken = 0, decoded = 0;
  std::exception_ptr failure;  // not of an image
  std::promise<DecodedImages> done;
};

ImageLoader::ImageLoader(int threads, bool pinned) : pinned_(pinned) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& failure) {
    end();
    throw Error(fmt::format("data.threads = {}: only {} could be started: {}", threads, threads_.size(),
                            failure.code().message()));
  }
}

ImageLoader::~ImageLoader() { end(); }

void ImageLoader::end() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::future<DecodedImages> ImageLoader::start(std::shared_ptr<const ImageShards> shards,
                                              std::vector<std::int64_t> images, int size, ChooseView view) {
  const auto job =
      std::make_shared<Job>(std::move(shards), std::move(images), size, std::move(view), pinned_);
  std::future<DecodedImages> future = job->done.get_future();
  if (job->images.empty()) {
    job->finish();
    return future;
  }
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
  }
  changed_.notify_all();
  return future;
}

void ImageLoader::work() {
  JpegDecoder decoder;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !jobs_.empty(); });
    if (ends_) return;
    const std::shared_ptr<Job> job = jobs_.front();
    const std::size_t i = job->taken++;
    if (job->taken == job->images.size()) jobs_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      job->decode(i, decoder);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) job->failure = failure;
    if (++job->decoded < job->images.size()) continue;
    lock.unlock();
    job->finish();
    lock.lock();
  }
}

}  // namespace starling
