// What a successor of an arbiter starts from, told by the last words of everybody.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "memory/ledger.h"
#include "memory/mailbox.h"
#include "memory/partition.h"

namespace rose::memory {

// A tenant that lives, and its words.
struct Heir {
  PartitionId partition{kNobody};
  const Mailbox* mailbox{nullptr};
};

// Books that balance.
//   partitions: by id; those of heirs live unless they were dropped before, all others are dropped
//               and hold nothing.
//   slabs: all at rest; leases are under the new epoch, and keep their ids.
//   claimed: slabs that an heir was granted in a change the ledger did not get to show: GRANTED,
//            each under a lease of its own, and to be revoked at once.
struct Inheritance {
  std::vector<Partition> partitions;
  std::vector<SlabRecord> slabs;
  std::vector<SlabId> claimed;
  std::uint64_t epoch{0};
  std::uint64_t next_lease{1};
};

// The rules, for each slab. Its word is the one of the heir at hand; words outrun the ledger.
//
//   ledger                    word                        so it is
//   an heir's                 ABSENT, same generation     unowned: the heir has left it
//   an heir's, GRANTED        CLOSED                      REVOKING
//   an heir's, OWNED          CLOSED                      QUARANTINED: it was being dropped
//   an heir's                 any other, or garbage       as the ledger says; of a partition that
//                                                         was dropped: QUARANTINED
//   not an heir's, or older   IDLE, BUSY or CLOSED        claimed, where floors and limit allow it
//   not an heir's             none                        unowned
//
// Corrupt when the ledger's last moment is, InvalidArgument for heirs that no arbiter had. A ledger
// whose writer died in a change is read as it is: then only what words confirm is believed.
Result<Inheritance> inherit(const LedgerView& ledger, std::span<const Heir> heirs) noexcept;

}  // namespace rose::memory
