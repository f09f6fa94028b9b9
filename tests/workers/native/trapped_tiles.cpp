// Runs the tile instructions of a library on a processor that has none: each raises SIGILL, and the handler here does what
// it says (emulated_tiles.h) and goes on behind it. So what is tested is the very machine code that a processor with AMX
// runs: encodings, registers, strides, configurations. Where there is AMX nothing traps, and it runs in fact.
//
// Compiled into the library of the kernels, with -Wl,-Bsymbolic, so that they ask the `syscall` below for permission.

#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <cstdarg>

#define TILES_STAND_IN "emulated_tiles.h"
#define tiles trapped_tiles  // beside the real ones of the other source
#include "../../../workers/fast/native/tiles.h"

namespace {

constexpr int REGISTERS[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
enum Prefix { NO_PREFIX, PREFIX_66, PREFIX_F3, PREFIX_F2 };

struct sigaction before;

// One instruction in the three-byte VEX form, map 0F38.
class Instruction {
public:
    Instruction(const uint8_t* code, const greg_t* values) : code_(code), values_(values) {
        const uint8_t modrm = code[4];
        mod_ = modrm >> 6, reg_ = (modrm >> 3) & 7, rm_ = modrm & 7;
        if (mod_ != 3) find_operand();
    }

    bool is(int opcode, Prefix prefix, bool of_memory) const {
        return code_[0] == 0xc4 && (code_[1] & 31) == 2 && (code_[2] & 0x84) == 0 && (code_[2] & 3) == prefix &&
               code_[3] == opcode && (mod_ != 3) == of_memory;
    }

    int reg() const { return reg_; }
    int rm() const { return rm_; }
    int third() const { return ~(code_[2] >> 3) & 15; }
    int64_t length() const { return length_; }
    int64_t stride() const { return stride_; }
    char* address() const { return reinterpret_cast<char*>(address_); }

private:
    void find_operand() {
        const bool has_sib = rm_ == 4;
        const uint8_t sib = code_[5];
        const int base = (has_sib ? sib & 7 : rm_) | (code_[1] & 0x20 ? 0 : 8);
        const int index = ((sib >> 3) & 7) | (code_[1] & 0x40 ? 0 : 8);
        length_ = 5 + has_sib;
        if (has_sib && index != 4) stride_ = values_[REGISTERS[index]] << (sib >> 6);
        const bool is_wide = mod_ == 2 || (mod_ == 0 && (base & 7) == 5);
        int32_t wide;
        std::memcpy(&wide, code_ + length_, sizeof wide);
        const int64_t displacement = is_wide ? wide : mod_ == 1 ? static_cast<int8_t>(code_[length_]) : 0;
        length_ += is_wide ? 4 : mod_ == 1;
        if (mod_ == 0 && (base & 7) == 5)
            address_ = displacement + (has_sib ? 0 : reinterpret_cast<int64_t>(code_) + length_);
        else
            address_ = displacement + values_[REGISTERS[base]];
    }

    const uint8_t* code_;
    const greg_t* values_;
    int mod_, reg_, rm_;
    int64_t length_ = 5, stride_ = 0, address_ = 0;
};

// False for what is no tile instruction.
bool run(const Instruction& one) {
    auto& state = trapped_tiles::state();
    if (one.is(0x49, NO_PREFIX, true))
        state.configure(*reinterpret_cast<const trapped_tiles::Shapes*>(one.address()));
    else if (one.is(0x49, NO_PREFIX, false))
        state.release();
    else if (one.is(0x49, PREFIX_F2, false))
        state.zero(one.reg());
    else if (one.is(0x4b, PREFIX_F2, true))
        state.load(one.reg(), one.address(), one.stride());
    else if (one.is(0x4b, PREFIX_F3, true))
        state.store(one.reg(), one.address(), one.stride());
    else if (one.is(0x5c, PREFIX_F3, false))
        state.dot(one.reg(), one.rm(), one.third());
    else
        return false;
    return true;
}

void trap(int, siginfo_t*, void* context) {
    greg_t* values = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const Instruction one(reinterpret_cast<const uint8_t*>(values[REG_RIP]), values);
    if (run(one))
        values[REG_RIP] += one.length();
    else
        sigaction(SIGILL, &before, nullptr);  // whose turn it is when the instruction is tried again
}

[[gnu::constructor]] void install() {
    struct sigaction action = {};
    action.sa_sigaction = trap;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before);
}

}  // namespace

extern "C" long syscall(long number, ...) noexcept {
    static const auto next = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
    va_list list;
    va_start(list, number);
    long arguments[6];
    for (long& argument : arguments) argument = va_arg(list, long);
    va_end(list);
    const long result = next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    return number == SYS_arch_prctl ? 0 : result;  // granted, be it that they trap
}
