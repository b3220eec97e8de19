import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.concurrent.atomic.LongAdder;

/** The sink of both peers: it counts results and adds them up, so that they can be checked, and keeps nothing. */
public final class Answer {
    static final LongAdder RECORDS = new LongAdder();
    private static final LongAdder RESULTS = new LongAdder();
    private static final LongAdder READINGS = new LongAdder();
    private static final LongAdder WINDOWS = new LongAdder();
    private static final DoubleAdder VALUES = new DoubleAdder();
    private static final int POLL_MS = 10;
    private static final int PROGRESS_EVERY_MS = 1_000;

    private Answer() {}

    /** One result: the number of its window (counted from 1970), how many readings it accounts for, its average or maximum. */
    static void add(long window, long readings, double value) {
        READINGS.add(readings);
        WINDOWS.add(window * readings);
        VALUES.add(value);
        RESULTS.increment();
    }

    /** End this process when the thread fails, whatever other threads there are. */
    static void haltOnFailure() {
        Thread.currentThread().setUncaughtExceptionHandler((thread, failure) -> {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
    }

    /**
     * Print a line of JSON each second, one at the moment when `mark` records are read, and one when the answer is complete
     * or the job has ended; then wait until the input ends, so that this process can still be measured, and end it.
     */
    static void report(Work work, CompletableFuture<?> job) throws Exception {
        long printed = System.nanoTime();
        boolean marked = false;
        while (RECORDS.sum() < work.records() || RESULTS.sum() < work.results()) {
            if (job.isDone()) {
                job.join();
                break;
            }
            boolean marks = !marked && RECORDS.sum() >= work.mark();
            marked |= marks;
            if (marks || System.nanoTime() - printed > PROGRESS_EVERY_MS * 1_000_000L) {
                print(false);
                printed = System.nanoTime();
            }
            Thread.sleep(POLL_MS);
        }
        print(true);
        while (System.in.read() >= 0) {
            // Only the end counts.
        }
        Runtime.getRuntime().halt(0);
    }

    private static void print(boolean complete) {
        System.out.println(String.format(Locale.ROOT,
            "{\"records\": %d, \"results\": %d, \"readings\": %d, \"windows\": %d, \"values\": %s, \"complete\": %s}",
            RECORDS.sum(), RESULTS.sum(), READINGS.sum(), WINDOWS.sum(), VALUES.sum(), complete));
        System.out.flush();
    }
}
