/** What a peer is asked to do, from the arguments of its main. */
public record Work(
        String name, String bootstrap, String topic, long records, long mark, long results, int parallelism, long delayMs,
        long snapshotEveryMs, String directory) {
    static final long TEN_SECONDS = 10_000;
    static final long MINUTE = 60_000;
    static final long SLIDE = 5_000;

    static Work of(String[] arguments) {
        return new Work(
            arguments[0], arguments[1], arguments[2], Long.parseLong(arguments[3]), Long.parseLong(arguments[4]),
            Long.parseLong(arguments[5]), Integer.parseInt(arguments[6]), Long.parseLong(arguments[7]),
            Long.parseLong(arguments[8]), arguments[9]);
    }

    /** W2 has one stage of sliding windows; W1 two of tumbling ones. */
    boolean slides() {
        return name.equals("W2");
    }
}
