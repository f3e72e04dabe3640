// The chunk plane for Python. No call waits with the GIL, and no C++ thread takes the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind/clock.h"
#include "bind/keep.h"
#include "bind/status.h"
#include "bind/unlocked.h"
#include "transfer/chunk_client.h"
#include "transfer/chunk_server.h"
#include "transfer/tls.h"

namespace rose::bind {

namespace py = pybind11;
using transfer::ChunkClient;
using transfer::ChunkKey;
using transfer::ChunkServer;
using transfer::TlsContext;
using transfer::TlsFiles;
using transfer::TlsSide;

namespace {

transfer::Token token_of(const py::bytes& bytes) {
  const std::string_view content = bytes;
  transfer::Token token;
  if (content.size() != token.size()) {
    raise(Status::invalid_argument("a token must have " + std::to_string(token.size()) +
                                   " bytes, got " + std::to_string(content.size())));
  }
  std::ranges::transform(content, token.begin(),
                         [](char one) { return static_cast<std::byte>(one); });
  return token;
}

std::shared_ptr<const TlsContext> context_of(const std::optional<TlsFiles>& files, TlsSide side) {
  return files ? take(TlsContext::create(*files, side)) : nullptr;
}

// ---- the server

class BoundChunkServer {
 public:
  BoundChunkServer(const transfer::ChunkServerConfig& config, std::shared_ptr<const Clock> clock)
      : server_{take(unlocked([&] { return ChunkServer::create(config, std::move(clock)); }))} {
    check(server_->start());
  }
  ~BoundChunkServer() {
    close();
    unlocked([&] { server_.reset(); });
    aside_->drop();
  }
  BoundChunkServer(const BoundChunkServer&) = delete;
  BoundChunkServer& operator=(const BoundChunkServer&) = delete;

  ChunkServer* operator->() const { return server_.get(); }

  void put(const ChunkKey& key, const py::buffer& frame) {
    aside_->drop();
    check(server_->shelf().put(key, frame_of(frame)));
  }

  std::uint32_t give(const ChunkKey& key, const py::buffer& frame) {
    aside_->drop();
    return take(server_->shelf().give(key, frame_of(frame)));
  }

  std::uint64_t forget(std::uint64_t n, std::int64_t base_n) {
    const std::uint64_t sent = server_->shelf().forget(n, base_n);
    aside_->drop();
    return sent;
  }

  std::vector<std::tuple<std::uint64_t, std::int64_t, std::uint32_t>> take_misses(
      double timeout_ms, std::size_t most) {
    const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
    const auto keys = unlocked([&] { return server_->shelf().take_misses(timeout_ns, most); });
    aside_->drop();
    std::vector<std::tuple<std::uint64_t, std::int64_t, std::uint32_t>> misses;
    for (const ChunkKey& key : keys) misses.emplace_back(key.n, key.base_n, key.tile);
    return misses;
  }

  void close() {
    unlocked([&] { server_->close(); });
    aside_->drop();
  }

 private:
  transfer::Frame frame_of(const py::buffer& frame) const {
    // A view locks the buffer, so that nobody can resize it while the server's thread sends it.
    const py::memoryview view{frame};
    const Py_buffer* const bytes = PyMemoryView_GET_BUFFER(view.ptr());
    if (!PyBuffer_IsContiguous(bytes, 'C')) {
      raise(Status::invalid_argument("a frame must be contiguous bytes: pass a copy"));
    }
    return {{static_cast<const std::byte*>(bytes->buf), static_cast<std::size_t>(bytes->len)},
            LaidAside::keep(aside_, view)};
  }

  std::shared_ptr<LaidAside> aside_{LaidAside::create()};
  std::unique_ptr<ChunkServer> server_;
};

std::unique_ptr<BoundChunkServer> create_server(
    const std::string& host, std::uint16_t port, const py::bytes& token,
    const std::optional<TlsFiles>& tls, std::uint64_t bytes_per_s, std::uint64_t burst_bytes,
    std::uint32_t connections_max, double park_ms, double greeting_ms, double idle_ms,
    double send_ms, std::shared_ptr<Clock> clock) {
  const transfer::ChunkServerConfig config{
      .host = host,
      .port = port,
      .token = token_of(token),
      .tls = context_of(tls, TlsSide::kServer),
      .bytes_per_s = bytes_per_s,
      .burst_bytes = burst_bytes,
      .connections_max = connections_max,
      .limits = {.greeting_ns = ns_of_ms(greeting_ms, "greeting_ms"),
                 .idle_ns = ns_of_ms(idle_ms, "idle_ms"),
                 .send_ns = ns_of_ms(send_ms, "send_ms"),
                 .park_ns = ns_of_ms(park_ms, "park_ms")}};
  return std::make_unique<BoundChunkServer>(config, clock_or_boot(std::move(clock)));
}

// ---- the client

class BoundChunkClient {
 public:
  BoundChunkClient(const transfer::ChunkClientConfig& config, std::shared_ptr<const Clock> clock)
      : client_{take(unlocked([&] { return ChunkClient::create(config, std::move(clock)); }))} {}
  ~BoundChunkClient() {
    unlocked([&] { client_.reset(); });
    aside_->drop();
  }
  BoundChunkClient(const BoundChunkClient&) = delete;
  BoundChunkClient& operator=(const BoundChunkClient&) = delete;

  void fetch(std::uint64_t n, std::int64_t base_n, const std::vector<std::uint32_t>& tiles,
             const std::vector<std::size_t>& sizes) {
    aside_->drop();
    if (tiles.size() != sizes.size()) {
      raise(Status::invalid_argument("each tile needs one size: got " +
                                     std::to_string(tiles.size()) + " tiles and " +
                                     std::to_string(sizes.size()) + " sizes"));
    }
    std::vector<transfer::Want> wants;
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      wants.push_back({{n, base_n, tiles[i]}, room_of(tiles[i], sizes[i])});
    }
    check(client_->fetch(std::move(wants)));
  }

  std::optional<std::pair<std::uint32_t, py::object>> next(double timeout_ms) {
    const Nanoseconds timeout_ns = ns_of_ms(timeout_ms, "timeout_ms");
    auto result = unlocked([&] { return client_->next(timeout_ns); });
    aside_->drop();
    auto arrival = take(std::move(result));
    if (!arrival) return std::nullopt;
    py::object frame = py::none();
    if (arrival->is_kept) {
      frame = py::reinterpret_borrow<py::object>(static_cast<PyObject*>(arrival->room.owner.get()));
    }
    arrival->room.owner.reset();
    aside_->drop();
    return std::pair{arrival->key.tile, std::move(frame)};
  }

  void cancel() {
    unlocked([&] { client_->cancel(); });
    aside_->drop();
  }
  void close() {
    unlocked([&] { client_->close(); });
    aside_->drop();
  }
  transfer::ChunkClientStats stats() const { return client_->stats(); }

 private:
  // Returns the room of a new bytes object, so that the frame is received directly into Python's
  // object. The object may be written, because no other code has seen it yet.
  transfer::Room room_of(std::uint32_t tile, std::size_t size) {
    if (size == 0 || size > transfer::kFrameBytesMax) {
      raise(Status::invalid_argument("tile " + std::to_string(tile) + " of " +
                                     std::to_string(size) + " bytes: the size must be from 1 to " +
                                     std::to_string(transfer::kFrameBytesMax)));
    }
    auto bytes = py::reinterpret_steal<py::object>(
        PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(size)));
    if (!bytes) throw py::error_already_set();
    auto* const content = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr()));
    return {{content, size}, LaidAside::keep(aside_, std::move(bytes))};
  }

  std::shared_ptr<LaidAside> aside_{LaidAside::create()};
  std::unique_ptr<ChunkClient> client_;
};

std::unique_ptr<BoundChunkClient> create_client(const std::string& host, std::uint16_t port,
                                                const py::bytes& token, std::uint32_t streams,
                                                const std::optional<TlsFiles>& tls,
                                                double timeout_ms, std::uint64_t bytes_per_s) {
  const transfer::ChunkClientConfig config{.host = host,
                                           .port = port,
                                           .token = token_of(token),
                                           .streams = streams,
                                           .tls = context_of(tls, TlsSide::kClient),
                                           .timeout_ns = ns_of_ms(timeout_ms, "timeout_ms"),
                                           .bytes_per_s = bytes_per_s};
  return std::make_unique<BoundChunkClient>(config, std::make_shared<BootClock>());
}

void bind_server(py::module_& module) {
  using Server = BoundChunkServer;
  py::class_<Server>(module, "ChunkServer")
      .def(py::init(&create_server), py::arg("host"), py::arg("port"), py::arg("token"),
           py::kw_only(), py::arg("tls") = std::nullopt, py::arg("bytes_per_s") = 0,
           py::arg("burst_bytes") = 1 << 20, py::arg("connections_max") = 64,
           py::arg("park_ms") = 0.0, py::arg("greeting_ms") = 5000.0, py::arg("idle_ms") = 60000.0,
           py::arg("send_ms") = 30000.0, py::arg("clock") = nullptr)
      .def_property_readonly("port", [](const Server& server) { return server->port(); })
      .def_property_readonly("longest_rtt_us",
                             [](const Server& server) { return server->stats().longest_rtt_us; })
      .def(
          "put",
          [](Server& server, std::uint64_t n, std::int64_t base_n, std::uint32_t tile,
             const py::buffer& frame) { server.put({n, base_n, tile}, frame); },
          py::arg("n"), py::arg("base_n"), py::arg("tile"), py::arg("frame"))
      .def("forget", &Server::forget, py::arg("n"), py::arg("base_n"))
      .def(
          "refuse",
          [](Server& server, std::uint64_t n, std::int64_t base_n, std::uint32_t tile) {
            server->shelf().refuse({n, base_n, tile});
          },
          py::arg("n"), py::arg("base_n"), py::arg("tile"))
      .def(
          "give",
          [](Server& server, std::uint64_t n, std::int64_t base_n, std::uint32_t tile,
             const py::buffer& frame) { return server.give({n, base_n, tile}, frame); },
          py::arg("n"), py::arg("base_n"), py::arg("tile"), py::arg("frame"))
      .def("take_misses", &Server::take_misses, py::arg("timeout_ms"), py::arg("most") = 1024)
      .def(
          "sent_bytes",
          [](const Server& server, std::uint64_t n, std::int64_t base_n) {
            return server->shelf().sent_bytes(n, base_n);
          },
          py::arg("n"), py::arg("base_n"))
      .def_property_readonly("sent_bytes_total",
                             [](const Server& server) { return server->shelf().sent_bytes(); })
      .def(
          "set_pace",
          [](Server& server, std::uint64_t bytes_per_s, std::uint64_t burst_bytes) {
            check(server->set_pace(bytes_per_s, burst_bytes));
          },
          py::arg("bytes_per_s"), py::arg("burst_bytes"))
      .def("close", &Server::close);
}

void bind_client(py::module_& module) {
  using Client = BoundChunkClient;
  py::class_<Client>(module, "ChunkClient")
      .def(py::init(&create_client), py::arg("host"), py::arg("port"), py::arg("token"),
           py::kw_only(), py::arg("streams") = 4, py::arg("tls") = std::nullopt,
           py::arg("timeout_ms"), py::arg("bytes_per_s") = 0)
      .def("fetch", &Client::fetch, py::arg("n"), py::arg("base_n"), py::arg("tiles"),
           py::arg("sizes"))
      .def("next", &Client::next, py::arg("timeout_ms"))
      .def("cancel", &Client::cancel)
      .def("close", &Client::close)
      .def_property_readonly("received_bytes",
                             [](const Client& client) { return client.stats().received_bytes; })
      .def_property_readonly("losses", [](const Client& client) { return client.stats().losses; });
}

}  // namespace

void bind_chunks(py::module_& module) {
  py::class_<TlsFiles>(module, "TlsFiles")
      .def(py::init([](std::string certificate, std::string key, std::string authority) {
             return TlsFiles{std::move(certificate), std::move(key), std::move(authority)};
           }),
           py::arg("certificate"), py::arg("key"), py::arg("authority"))
      .def_readonly("certificate", &TlsFiles::certificate)
      .def_readonly("key", &TlsFiles::key)
      .def_readonly("authority", &TlsFiles::authority);
  bind_server(module);
  bind_client(module);
}

}  // namespace rose::bind
