#include "base/owned_thread.h"

namespace rose {

void OwnedThread::join() noexcept {
  if (!owner_.is_here()) {
    // The mutex may be held by a thread of the parent. A std::thread could be neither joined nor
    // destroyed here, so it is left to the end of the process.
    (void)thread_.release();
    return;
  }
  const std::scoped_lock lock{mutex_};
  if (thread_ == nullptr) return;
  thread_->join();
  thread_.reset();
}

bool OwnedThread::is_running() const noexcept {
  const std::scoped_lock lock{mutex_};
  return thread_ != nullptr;
}

}  // namespace rose
