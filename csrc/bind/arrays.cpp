#include "bind/arrays.h"

#include "bind/status.h"

namespace rose::bind {

using transfer::Isa;

Isa isa_of(const std::optional<std::string>& name) {
  const Isa best = transfer::best_isa();
  if (!name) return best;
  const std::optional<Isa> isa = transfer::isa_named(*name);
  if (!isa) raise(Status::invalid_argument("isa '" + *name + "': choose portable, avx2 or avx512"));
  if (*isa > best) {
    raise(Status::invalid_argument("isa '" + *name + "': this machine has " +
                                   std::string{transfer::name_of(best)} + " at most"));
  }
  return *isa;
}

}  // namespace rose::bind
