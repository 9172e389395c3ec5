#include "starling/data/jpeg.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <vector>

#include <fmt/format.h>
#include <jerror.h>
#include <jpeglib.h>

#include "starling/core/error.h"
#include "starling/data/resample.h"

#ifndef LIBJPEG_TURBO_VERSION
#error "Starling needs libjpeg-turbo: other libraries of this interface cannot skip columns"
#endif

namespace starling {

struct JpegDecoder::State {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf escape;
  std::array<char, JMSG_LENGTH_MAX> message{};
  // Kept from image to image.
  Taps columns, rows;
  std::vector<std::uint8_t> pixels;
  std::vector<float> row;
};

namespace {

template <class State>
[[noreturn]] void give_up(j_common_ptr jpeg) {
  auto* const state = static_cast<State*>(jpeg->client_data);
  state->errors.format_message(jpeg, state->message.data());
  std::longjmp(state->escape, 1);
}

// libjpeg only warns of damaged data and goes on with grey.
template <class State>
void on_message(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  switch (jpeg->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
      return;
    default:
      give_up<State>(jpeg);
  }
}

// Each scan of a progressive image takes as long as an image, however few bytes it has.
template <class State>
void on_progress(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= JpegDecoder::kMostScans) return;
  auto* const state = static_cast<State*>(jpeg->client_data);
  std::snprintf(state->message.data(), state->message.size(), "more than %d scans", JpegDecoder::kMostScans);
  std::longjmp(state->escape, 1);
}

// Runs f(), which calls libjpeg. A failure leaves f() by longjmp, so it has no objects with
// destructors.
template <class State, class F>
void guarded(State& state, const F& f) {
  if (setjmp(state.escape) == 0) return f();
  jpeg_abort_decompress(&state.jpeg);
  throw Error(fmt::format("broken JPEG: {}", state.message.data()));
}

bool is_grey_or_rgb(J_COLOR_SPACE space) {
  return space == JCS_GRAYSCALE || space == JCS_YCbCr || space == JCS_RGB;
}

// In eighths, which libjpeg-turbo has vector code for. The box keeps `size` pixels, if it has them.
int scale_of(const ImageView& view, int size) {
  int eighths = 1;
  while (eighths < 8 && std::min(view.width, view.height) * eighths < 8.0 * size) eighths *= 2;
  return eighths;
}

}  // namespace

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.jpeg.err = jpeg_std_error(&s.errors);
  s.errors.error_exit = give_up<State>;
  s.errors.emit_message = on_message<State>;
  s.progress.progress_monitor = on_progress<State>;
  s.jpeg.client_data = &s;
  guarded(s, [&] {
    jpeg_create_decompress(&s.jpeg);
    s.jpeg.progress = &s.progress;
  });
}

JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&state_->jpeg); }

ImageSize JpegDecoder::open(std::span<const std::byte> bytes) {
  State& s = *state_;
  guarded(s, [&] {
    jpeg_abort_decompress(&s.jpeg);
    jpeg_mem_src(&s.jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&s.jpeg, TRUE);
  });
  if (!is_grey_or_rgb(s.jpeg.jpeg_color_space))
    throw Error("JPEG of other colours: wants grey, YCbCr or RGB");
  if (std::int64_t{s.jpeg.image_width} * s.jpeg.image_height > kMostPixels)
    throw Error(fmt::format("JPEG of {}x{} pixels: at most {} are allowed", s.jpeg.image_width,
                            s.jpeg.image_height, kMostPixels));
  return {static_cast<int>(s.jpeg.image_width), static_cast<int>(s.jpeg.image_height)};
}

void JpegDecoder::decode(const ImageView& view, int size, std::uint8_t* out) {
  State& s = *state_;
  const int eighths = scale_of(view, size);
  guarded(s, [&] {
    s.jpeg.scale_num = static_cast<unsigned>(eighths);
    s.jpeg.scale_denom = 8;
    s.jpeg.out_color_space = JCS_EXT_RGBX;
    jpeg_start_decompress(&s.jpeg);
  });

  const double scale = eighths / 8.0;
  const auto set = [&](Taps& taps, double begin, double length, JDIMENSION side, bool flip) {
    int low = 0, high = static_cast<int>(side);
    if (view.cut) {
      low = std::clamp(static_cast<int>(begin * scale), 0, high - 1);
      high = std::clamp(static_cast<int>((begin + length) * scale + 0.999), low + 1, high);
    }
    taps.set(begin * scale, length * scale, size, low, high, flip);
  };
  set(s.columns, view.x, view.width, s.jpeg.output_width, view.flip);
  set(s.rows, view.y, view.height, s.jpeg.output_height, false);

  // Colour at the edge of a column that is decoded lacks its neighbour: one more at each side.
  const int from = std::max(0, s.columns.first() - 2);
  const int to = std::min(static_cast<int>(s.jpeg.output_width), s.columns.end() + 2);
  JDIMENSION x = static_cast<JDIMENSION>(from), width = static_cast<JDIMENSION>(to - from);
  guarded(s, [&] { jpeg_crop_scanline(&s.jpeg, &x, &width); });
  const auto first = static_cast<JDIMENSION>(s.rows.first());
  const std::size_t stride = std::size_t{width} * 4;
  s.pixels.resize(static_cast<std::size_t>(s.rows.end() - s.rows.first()) * stride);
  guarded(s, [&] {
    if (first > 0) jpeg_skip_scanlines(&s.jpeg, first);
    while (s.jpeg.output_scanline < static_cast<JDIMENSION>(s.rows.end())) {
      JSAMPROW row = s.pixels.data() + (s.jpeg.output_scanline - first) * stride;
      jpeg_read_scanlines(&s.jpeg, &row, 1);
    }
    jpeg_abort_decompress(&s.jpeg);
  });
  resample({.bytes = s.pixels.data(),
            .x = static_cast<int>(x),
            .y = s.rows.first(),
            .width = static_cast<int>(width)},
           s.columns, s.rows, s.row, out);
}

}  // namespace starling
