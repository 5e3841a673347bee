// Scratch memory of the kernels. Included inside a namespace, as lanes.h is.
#pragma once

// Memory for the vectors that one thread works with. Until `allocate` it only counts what is taken, so that the same constructor first
// measures and then takes.
template <class Real>
class Arena {
  public:
    Arena() = default;
    ~Arena() { std::free(data_); }
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;

    Vector<Real> *take(int64_t vectors) {
        Vector<Real> *result = data_ ? data_ + used_ : nullptr;
        used_ += vectors;
        return result;
    }
    void allocate() {
        const size_t bytes = (used_ * sizeof(Vector<Real>) + 63) / 64 * 64;
        data_ = static_cast<Vector<Real> *>(std::aligned_alloc(64, bytes));
        if (!data_) throw std::bad_alloc();
        used_ = 0;
    }

  private:
    Vector<Real> *data_ = nullptr;
    int64_t used_ = 0;
};

// One arena for each thread, made before the threads start: an exception that leaves a parallel region, as one for want of
// memory would, ends the process. `take` is called with an arena and takes what a thread needs.
template <class Real>
class Arenas {
  public:
    template <class Take>
    Arenas(int threads, Take take) : arenas_(threads) {
        for (Arena<Real> &arena : arenas_) {
            take(arena);
            arena.allocate();
        }
    }
    // The arena of the calling thread.
    Arena<Real> &mine() {
#ifdef _OPENMP
        return arenas_[omp_get_thread_num()];
#else
        return arenas_[0];
#endif
    }

  private:
    std::vector<Arena<Real>> arenas_;
};
