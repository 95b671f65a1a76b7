// The store: every promise of store.h that needs no gang.
#include "coordinator/store/store.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <set>

#include "tests/coordinator/support.h"

using namespace fenwick;
using fenwick::testing::TemporaryFolder;

namespace {

NewJob new_job(const std::string& key = "", std::int32_t priority = 0) {
    NewJob job;
    job.client = "ann";
    job.idempotency_key = key;
    job.model_name = "small";
    job.model_path = "/models/small";
    job.model_hash = "abcd";
    job.spec.model.__set_name("small");
    idl::DocumentRef document;
    document.source.__set_text("hello");
    document.__set_customId("a");
    job.spec.documents = {document};
    job.spec.__isset.documents = true;
    job.spec.__set_priority(priority);
    return job;
}

/// A job with `documents` documents of `tokens` tokens, ready to be leased.
std::string started_job(Store& store, int documents, std::int64_t tokens, const NewJob& job = new_job()) {
    const std::string id = store.submit(job).id;
    std::vector<DocumentRef> refs(static_cast<std::size_t>(documents));
    for (std::size_t i = 0; i < refs.size(); ++i) refs[i].custom_id = "d" + std::to_string(i);
    store.add_documents(id, refs, 0);
    std::vector<Store::CheckedDocument> checked;
    for (const StoredDocument& document : store.unchecked_documents(id, documents)) {
        checked.push_back({.id = document.id, .tokens = tokens, .input_hash = "h", .row = "", .message = ""});
    }
    store.record_checked(id, checked);
    store.start_job(id);
    return id;
}

LeaseRequest cpu_gang(const std::string& id = "g1") {
    LeaseRequest request;
    request.gang_id = id;
    request.device = "cpu";
    request.dtype = "fp32";
    return request;
}

const std::string kRow = R"({"nll_file":"nll/x.npy"})";

ServiceCode fault_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const ServiceFault& fault) {
        return fault.service_code();
    }
    FAIL("no ServiceFault");
    return ServiceCode::INTERNAL;
}

}  // namespace

TEST_CASE("store: the same key gives the same job, across restarts, and another spec is a conflict") {
    const TemporaryFolder folder;
    std::string id;
    {
        Store store(folder / "s.db");
        id = store.submit(new_job("k")).id;
        CHECK(store.submit(new_job("k")).id == id);
        CHECK(store.submit(new_job()).id != id);
    }
    Store store(folder / "s.db");
    CHECK(store.submit(new_job("k")).id == id);
    CHECK(store.find_submitted("ann", "k", new_job().spec)->id == id);
    CHECK_FALSE(store.find_submitted("bob", "k", new_job().spec));
    CHECK(fault_of([&] { (void)store.submit(new_job("k", 7)); }) == ServiceCode::CONFLICT);
    CHECK(fault_of([&] { (void)store.job("job-0"); }) == ServiceCode::NOT_FOUND);
}

TEST_CASE("store: one coordinator at a time") {
    const TemporaryFolder folder;
    const Store store(folder / "s.db");
    CHECK_THROWS_WITH(Store(folder / "s.db"), Catch::Contains("another coordinator"));
}

TEST_CASE("store: a job goes through its states, and its counts and version follow") {
    const TemporaryFolder folder;
    Store store(folder / "s.db");
    std::vector<std::int64_t> versions;
    store.on_job_change([&](const std::string&, std::int64_t version) { versions.push_back(version); });
    const std::string id = started_job(store, 2, 5000);
    CHECK(store.job(id).state == idl::JobState::IN_PROGRESS);
    CHECK(store.job(id).requestCounts.queued == 2);
    CHECK(store.job(id).tokens == 10000);

    const auto first = store.lease_next(cpu_gang());
    REQUIRE(first);
    CHECK(first->document.ref.custom_id == "d0");
    CHECK(first->limit == 5000);
    const RunningProgress progress{first->key, 4096, 100};
    store.record_progress(std::span(&progress, 1));
    idl::Job job = store.job(id);
    CHECK(job.tokensDone == 4096);
    CHECK(job.tokensPerSecond == Approx(100));
    CHECK(job.etaSeconds == Approx((10000 - 4096) / 100.0));
    CHECK(job.device == "cpu");

    CHECK(store.complete(first->key, kRow, 4999, {.computed_tokens = 5000, .rank_seconds = 2, .gpu_seconds = 0}));
    const auto second = store.lease_next(cpu_gang());
    REQUIRE(second);
    CHECK(store.fail(second->key, ServiceCode::NUMERIC_ERROR, "nan", "{}", {}));
    job = store.job(id);
    CHECK(job.state == idl::JobState::FINALIZING);
    CHECK(store.jobs_in(idl::JobState::FINALIZING) == std::vector<std::string>{id});
    store.finish_job(id, {"results.jsonl"});
    job = store.job(id);
    CHECK(job.state == idl::JobState::COMPLETED);
    CHECK(job.files == std::vector<std::string>{"results.jsonl"});
    CHECK(job.requestCounts.completed == 1);
    CHECK(job.requestCounts.failed == 1);
    CHECK(job.usage.tokens == 5000);
    CHECK(store.client_usage("ann").computedTokens == 5000);
    CHECK(std::is_sorted(versions.begin(), versions.end()));
    CHECK(versions.back() == job.version);
    CHECK_FALSE(store.read_logs(id, 0, 0).entries.empty());
}

TEST_CASE("store: who writes under an old epoch changes nothing") {
    const TemporaryFolder folder;
    Store store(folder / "s.db");
    const std::string id = started_job(store, 1, 10000);
    const auto old = store.lease_next(cpu_gang("g1"));
    REQUIRE(old);
    REQUIRE(
        store.record_save(old->key, {.position = 4096, .nll_total = 1.5, .state_hash = "x", .state_file = ""}, 1, {}));
    REQUIRE(store.release(old->key, "rank 1 is lost", true, "{}", {}) == ReleaseOutcome::kRequeued);
    const auto lease = store.lease_next(cpu_gang("g2"));
    REQUIRE(lease);
    CHECK(lease->key.epoch > old->key.epoch);
    CHECK(lease->first == 4096);
    CHECK(lease->document.save.nll_total == 1.5);

    CHECK_FALSE(store.is_current(old->key));
    CHECK_FALSE(
        store.record_save(old->key, {.position = 8192, .nll_total = 9, .state_hash = "", .state_file = ""}, 1, {}));
    CHECK_FALSE(store.complete(old->key, kRow, 9999, {}));
    CHECK_FALSE(store.fail(old->key, ServiceCode::INTERNAL, "", "{}", {}));
    CHECK(store.release(old->key, "", true, "{}", {}) == ReleaseOutcome::kFenced);
    CHECK(store.document(lease->document.id).save.position == 4096);
    CHECK(store.complete(lease->key, kRow, 9999, {}));
    CHECK_FALSE(store.complete(lease->key, kRow, 9999, {}));  // once
    CHECK(store.job(id).requestCounts.completed == 1);
}

TEST_CASE("store: a document fails after its last attempt, and can be retried") {
    const TemporaryFolder folder;
    Store store(folder / "s.db");
    NewJob job = new_job();
    job.spec.__set_maxAttempts(2);
    const std::string id = started_job(store, 1, 100, job);
    CHECK(store.release(store.lease_next(cpu_gang())->key, "drained", false, "{}", {}) == ReleaseOutcome::kRequeued);
    CHECK(store.release(store.lease_next(cpu_gang())->key, "lost", true, "{}", {}) == ReleaseOutcome::kRequeued);
    CHECK(store.release(store.lease_next(cpu_gang())->key, "lost", true, "{}", {}) == ReleaseOutcome::kFailed);
    CHECK(store.list_documents(id, "", 0, {}).documents.at(0).errorCode == ServiceCode::WORKER_LOST);
    CHECK(fault_of([&] { (void)store.retry(id, true); }) == ServiceCode::CONFLICT);
    store.finish_job(id, {});
    CHECK(store.retry(id, true) == 1);
    CHECK(store.job(id).state == idl::JobState::VALIDATING);
    CHECK(store.job(id).requestCounts.queued == 1);
    CHECK(store.unchecked_documents(id, 10).size() == 1);
}

TEST_CASE("store: a document that makes progress has all its attempts again") {
    const TemporaryFolder folder;
    Store store(folder / "s.db");
    NewJob job = new_job();
    job.spec.__set_maxAttempts(2);
    (void)started_job(store, 1, 100000, job);
    for (std::int64_t position = 4096; position <= 5 * 4096; position += 4096) {
        const auto lease = store.lease_next(cpu_gang());
        REQUIRE(lease);
        REQUIRE(store.record_save(lease->key,
                                  {.position = position, .nll_total = 0, .state_hash = "", .state_file = ""}, 1, {}));
        CHECK(store.release(lease->key, "lost", true, "{}", {}) == ReleaseOutcome::kRequeued);
    }
}

TEST_CASE("store: stretches, priorities, models and devices decide who gets what") {
    const TemporaryFolder folder;
    Store store(folder / "s.db");
    const std::string low = started_job(store, 1, 20000, new_job("a", 0));
    const std::string high = started_job(store, 1, 20000, new_job("b", 5));
    LeaseRequest request = cpu_gang();
    request.stretch_tokens = 8192;
    request.excluded_models = {"abcd"};
    CHECK_FALSE(store.lease_next(request));
    request.excluded_models = {};
    request.model_hashes = {"ffff"};
    CHECK_FALSE(store.lease_next(request));
    request.model_hashes = {"abcd"};
    const auto first = store.lease_next(request);
    REQUIRE(first);
    CHECK(first->document.job_id == high);
    CHECK(first->limit == 8192);
    REQUIRE(
        store.record_save(first->key, {.position = 8192, .nll_total = 0, .state_hash = "", .state_file = ""}, 1, {}));
    REQUIRE(store.release(first->key, "", false, "{}", {}) == ReleaseOutcome::kRequeued);
    request.device = "cuda";  // the job was begun on the CPU: a GPU's bits are others
    request.dtype = "bf16";
    CHECK(store.lease_next(request)->document.job_id == low);
    request.device = "cpu";
    request.dtype = "fp32";
    const auto second = store.lease_next(request);
    CHECK(second->document.job_id == high);
    CHECK(second->first == 8192);
    CHECK(second->limit == 16384);
    CHECK(second->key.epoch == first->key.epoch + 2);
}

TEST_CASE("store: cancelling and expiring end leases") {
    const TemporaryFolder folder;
    Store store(folder / "s.db");
    const std::string id = started_job(store, 3, 100);
    const auto done = store.lease_next(cpu_gang());
    REQUIRE(store.complete(done->key, kRow, 99, {}));
    const auto lease = store.lease_next(cpu_gang());
    REQUIRE(lease);
    CHECK(store.cancel(id) == std::vector<LeaseKey>{lease->key});
    CHECK(store.job(id).state == idl::JobState::CANCELLING);
    CHECK_FALSE(store.complete(lease->key, kRow, 99, {}));
    CHECK(store.job(id).requestCounts.cancelled == 2);
    store.finish_job(id, {});
    CHECK(store.job(id).state == idl::JobState::CANCELLED);
    CHECK(store.cancel(id).empty());

    NewJob brief = new_job();
    brief.spec.__set_expiresAfterSeconds(0);
    const std::string late = started_job(store, 1, 100, brief);
    const auto running = store.lease_next(cpu_gang());
    CHECK(store.expire_jobs() == std::vector<LeaseKey>{running->key});
    store.finish_job(late, {});
    CHECK(store.job(late).state == idl::JobState::EXPIRED);
}

TEST_CASE("store: a restart queues what was running at its save point, and forgets no row") {
    const TemporaryFolder folder;
    LeaseKey old;
    std::string id;
    {
        Store store(folder / "s.db");
        id = started_job(store, 2, 10000);
        REQUIRE(store.complete(store.lease_next(cpu_gang())->key, kRow, 9999, {}));
        const auto lease = store.lease_next(cpu_gang());
        old = lease->key;
        REQUIRE(store.record_save(old, {.position = 4096, .nll_total = 2, .state_hash = "s", .state_file = ""}, 1, {}));
        idl::GangInfo gang;
        gang.id = "g1";
        gang.state = idl::GangState::BUSY;
        store.record_gangs(std::span(&gang, 1));
    }
    Store store(folder / "s.db");
    CHECK_FALSE(store.is_current(old));
    CHECK(store.gang("g1").state == idl::GangState::LOST);
    const idl::Job job = store.job(id);
    CHECK(job.requestCounts.queued == 1);
    CHECK(job.requestCounts.completed == 1);
    CHECK(store.lease_next(cpu_gang())->first == 4096);
}

TEST_CASE("store: pages come in order, whole, and without repeats") {
    const TemporaryFolder folder;
    Store store(folder / "s.db");
    const std::string id = started_job(store, 25, 10);
    std::vector<std::string> names;
    std::string token;
    do {
        const idl::DocumentPage page = store.list_documents(id, token, 10, {});
        for (const auto& document : page.documents) names.push_back(document.customId);
        token = page.__isset.nextPageToken ? page.nextPageToken : "";
    } while (!token.empty());
    REQUIRE(names.size() == 25);
    CHECK(names.front() == "d0");
    CHECK(names.back() == "d24");
    for (int i = 0; i < 4; ++i) (void)store.submit(new_job());
    const idl::JobPage jobs = store.list_jobs("ann", "", 3, {});
    CHECK(jobs.jobs.size() == 3);
    CHECK(store.list_jobs("ann", jobs.nextPageToken, 3, {}).jobs.size() == 2);
    CHECK(store.list_jobs("bob", "", 3, {}).jobs.empty());
    CHECK(store.list_jobs("", "", 0, {idl::JobState::IN_PROGRESS}).jobs.size() == 1);
    CHECK(fault_of([&] { (void)store.list_jobs("", "x", 3, {}); }) == ServiceCode::INVALID_ARGUMENT);
    CHECK(fault_of([&] { (void)store.list_jobs("", "", -1, {}); }) == ServiceCode::INVALID_ARGUMENT);
}

TEST_CASE("store: limits of a client, and its uploads") {
    const TemporaryFolder folder;
    Store store(folder / "s.db");
    NewJob job = new_job("k");
    job.limits.active_jobs = 1;
    const std::string id = store.submit(job).id;
    CHECK(store.submit(job).id == id);  // asking again takes nothing
    job.idempotency_key = "l";
    CHECK(fault_of([&] { (void)store.submit(job); }) == ServiceCode::QUOTA_EXCEEDED);
    job.client = "bob";
    CHECK_NOTHROW(store.submit(job));

    const ClientLimits limits{.active_jobs = 0, .active_documents = 0, .upload_bytes = 100};
    const idl::Upload upload = store.begin_upload("ann", "a.txt", 60, now_ms() - 1, limits);
    CHECK(fault_of([&] { (void)store.begin_upload("ann", "b.txt", 60, 0, limits); }) == ServiceCode::QUOTA_EXCEEDED);
    CHECK(fault_of([&] { (void)store.upload("bob", upload.id); }) == ServiceCode::NOT_FOUND);
    NewJob with_upload = new_job();
    with_upload.spec.documents[0].source = {};
    with_upload.spec.documents[0].source.__set_uploadId(upload.id);
    CHECK(fault_of([&] { (void)store.submit(with_upload); }) == ServiceCode::INVALID_ARGUMENT);
    store.record_received(upload.id, 60);
    store.commit_upload(upload.id);
    CHECK(store.upload("ann", upload.id).committed);
    CHECK_NOTHROW(store.submit(with_upload));
    CHECK(store.expire_uploads().empty());  // a job uses it
}

TEST_CASE("store: ten thousand queued documents are there again within five seconds") {
    const TemporaryFolder folder;
    std::string id;
    {
        Store store(folder / "s.db");
        id = started_job(store, 10000, 1000);
    }
    const auto begun = std::chrono::steady_clock::now();
    Store store(folder / "s.db");
    REQUIRE(store.lease_next(cpu_gang()));
    CHECK(store.job(id).requestCounts.queued == 9999);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    CHECK(took.count() < 5);
}
