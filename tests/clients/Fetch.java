// Gets and posts with the HttpClient of the Java library.
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

class Fetch {
    public static void main(String[] bases) throws Exception {
        var client = HttpClient.newBuilder().proxy(ProxySelector.getDefault()).build();
        for (String base : bases) {
            var get = HttpRequest.newBuilder(URI.create(base + "/got")).build();
            System.out.println(client.send(get, BodyHandlers.ofString()).statusCode());
            var post = HttpRequest.newBuilder(URI.create(base + "/posted"))
                    .POST(HttpRequest.BodyPublishers.ofString("body"))
                    .build();
            System.out.println(base + " " + client.send(post, BodyHandlers.ofString()).body());
        }
    }
}
