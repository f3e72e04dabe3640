// Core::snapshot and Core::restored: magic, version, checksum, then the fields of Book::image.
#include <array>
#include <cstring>
#include <string>

#include "base/crc32.h"
#include "scheduler/core.h"
#include "scheduler/image.h"

namespace rose::scheduler {

namespace {

constexpr std::uint32_t kImageVersion = 4;

struct Header {
  std::array<char, 8> magic{'r', 'o', 's', 'e', 'c', 'o', 'r', 'e'};
  std::uint32_t version{kImageVersion};
  std::uint32_t checksum{0};
  std::uint64_t size_bytes{0};  // size of the body

  template <typename Image>
  void image(Image& image) {
    image(magic, version, checksum, size_bytes);
  }
};
constexpr std::size_t kHeaderBytes = 24;

Status corrupt_image(const std::string& why) {
  return Status::corrupt("a scheduler's image: " + why);
}

}  // namespace

std::vector<std::byte> Core::snapshot() {
  std::vector<std::byte> body;
  ImageWriter write{body};
  Settings settings = book_.settings;
  PlacementPolicy policy = book_.policy;
  write(policy, settings, book_, dispatch_);
  Header header;
  header.checksum = crc32(body.data(), body.size(), 0);
  header.size_bytes = body.size();
  std::vector<std::byte> bytes;
  bytes.reserve(kHeaderBytes + body.size());
  ImageWriter{bytes}(header);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

Result<std::unique_ptr<Core>> Core::restored(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return corrupt_image("it is shorter than its header");
  Header header;
  ImageReader{bytes.first(kHeaderBytes)}(header);
  if (header.magic != Header{}.magic) return corrupt_image("its magic number differs");
  if (header.version != kImageVersion) {
    return corrupt_image("it has version " + std::to_string(header.version) +
                         ", but this rose reads version " + std::to_string(kImageVersion));
  }
  const std::span<const std::byte> body = bytes.subspan(kHeaderBytes);
  if (body.size() != header.size_bytes) return corrupt_image("its length differs from its header");
  if (crc32(body.data(), body.size(), 0) != header.checksum) {
    return corrupt_image("its checksum is wrong");
  }
  ImageReader read{body};
  PlacementPolicy policy{};
  Settings settings;
  read(policy, settings);
  auto core = std::make_unique<Core>(settings, policy);
  read(core->book_, core->dispatch_);
  if (!read.is_whole()) return corrupt_image("it is cut short, or has a value that does not exist");
  if (!core->book_.is_in_bounds()) return corrupt_image("it names something that is not in it");
  core->book_.workers.show_all();
  return core;
}

}  // namespace rose::scheduler
